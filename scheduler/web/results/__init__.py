"""What jobs leave behind: their working folders, artefacts and checkpoints."""

"""What jobs leave behind: their working folders on nodes, and artefacts in the storage."""

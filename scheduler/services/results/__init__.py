"""What jobs leave in their working folders: how long it is kept, who may read it, how it is read and removed."""

"""What a task begins with, fetched from the server before it starts: an uploaded folder, a checkpoint to go on from."""

"""What the machine gives a process: memory and room on disks."""

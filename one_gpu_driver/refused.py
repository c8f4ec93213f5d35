"""What the message of a start says that another host, or a later time, may still serve. The hook that schedules such a
VM again looks for it."""

NO_GPU = "no GPU free"

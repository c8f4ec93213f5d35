"""What is in `inside` runs in the lab only: `make lab`."""
import os

collect_ignore = [] if os.environ.get("LAB") else ["inside"]

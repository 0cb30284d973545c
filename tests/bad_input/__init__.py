"""Whatever a user can get wrong ends with one line that says where, what was found and what is
allowed: exit code 2, and nothing has started or been written."""

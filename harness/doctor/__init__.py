"""Whether trials can run: on this machine, or on a cluster by way of a tiny job."""

"""Hosts in network namespaces on a bridge: real mDNS, real routes, real partitions. Linux and root only."""

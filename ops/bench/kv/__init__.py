"""The data plane beside its peers and the machine's limits: two processes, pages to pages."""

"""Programs that run one variant on one layer, outside the service."""

"""The object stores that tests run on."""

STORES = {
    "s3": "S3 (moto)",
    "seaweedfs": "S3 (SeaweedFS)",
    "azure": "Azure (azurite)",
    "gs": "Google (our server)",
}
"""Names of the fixtures of servers, and of the stores."""

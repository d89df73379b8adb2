"""Many ranks: shards, sets of shards, and checkpoints that ranks agree on."""

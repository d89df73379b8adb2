"""What every part may use: errors of arguments, time, leases, requests, plain HTML."""

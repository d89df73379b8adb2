"""One adapter per implementation. Each runs inside that implementation's own interpreter."""

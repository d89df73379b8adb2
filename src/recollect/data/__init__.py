"""What travels: columns, batches, schemas, and the Arrow encoding of them."""

"""What is said: record types, their Avro schemas, the codec, packed arrays, and the root of the errors."""

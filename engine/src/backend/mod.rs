//! Back ends: what the decoder is computed with.

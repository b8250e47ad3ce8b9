//! How the next token is chosen.

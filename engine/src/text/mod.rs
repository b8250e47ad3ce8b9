//! Text: tokenizer, incremental detokenisation, chat templates.
//!
//! A [`Tokenizer`] knows the bytes that each token stands for; a [`Detokenizer`] strings them together and gives text out when
//! it is complete UTF-8; a [`ChatTemplate`] turns a conversation into the text that the model was trained on.

mod chat;
mod detokenizer;
mod gguf;
mod token_bytes;
mod tokenizer;

pub use chat::ChatTemplate;
pub use detokenizer::Detokenizer;
pub use tokenizer::Tokenizer;

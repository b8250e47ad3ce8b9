//! OpenAI's API: `POST /v1/completions`, `POST /v1/chat/completions`, `GET /v1/models`, `GET /v1/models/{model}`.
//!
//! - [`request`]: from a body to a [`Call`](request::Call), or to the [`Fault`] that says what is wrong with it.
//! - [`answer`]: from what the engine gives to documents and to the chunks of a stream.
//! - [`Fault`]: errors, in OpenAI's shape with LoRAX's `error_type` beside it.
//!
//! Fields that are not known are ignored, as LoRAX and vLLM do. A known field that is not supported is refused by its
//! name. `null` is the same as leaving a field out. Beside OpenAI's fields those of LoRAX (`adapter_source`,
//! `api_token`, `repetition_penalty`, `top_k`, `ignore_eos_token`, `guideline`) and the common ones of vLLM are read.
//!
//! Without a `temperature` both routes sample at 1, as OpenAI documents. (LoRAX is greedy on `/v1/completions` unless
//! `n` is given. That is not copied.)

pub mod answer;
mod fault;
mod plugin;
pub mod request;

pub use fault::Fault;
pub use plugin::OpenAi;

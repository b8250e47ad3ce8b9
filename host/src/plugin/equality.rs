//! Comparing values of the contract. The bindings' generator derives a trait for all types or for none, and handles
//! cannot be compared.

use super::bindings::heddle::plugin::generation::{Alternative, Chat, FinishReason, Prompt, Token};

impl PartialEq for Prompt {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Tokens(one), Self::Tokens(other)) => one == other,
            (Self::Chat(one), Self::Chat(other)) => one == other,
            _ => false,
        }
    }
}

impl PartialEq for FinishReason {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::StopSequence(one), Self::StopSequence(other)) => one == other,
            (Self::Other(one), Self::Other(other)) => one == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Field by field.
macro_rules! fields {
    ($($record:ident { $($field:ident),* })*) => {
        $(impl PartialEq for $record {
            fn eq(&self, other: &Self) -> bool {
                $(self.$field == other.$field)&&*
            }
        })*
    };
}

fields! {
    Chat { messages, tools, arguments }
    Token { id, text, bytes, logprob, top, special }
    Alternative { id, text, bytes, logprob }
}

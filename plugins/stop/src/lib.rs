//! Stop sequences: any length, in text that comes in any pieces, many at once, in linear time.
//!
//! **Which one stops.** The sequence that is *complete* first stops the text: the occurrence with the smallest end.
//! If several end at the same place, the longest of them, which starts earliest; of equal ones, the first listed. A
//! stream can decide this at the moment it happens. (The occurrence that *starts* first could not be: with `abcd` and
//! `bc`, whether the `bc` of `abc` counts would depend on text that may never come.)
//!
//! **What is shown.** The text before that occurrence and nothing of it; with `keep`, the occurrence too. Until then
//! exactly the text that may still become part of an occurrence is held back: the longest end of the text that begins
//! a sequence. Empty sequences never match.
//!
//! The work is that of Aho and Corasick (1975): see [`automaton`].

pub mod automaton;
mod matcher;
mod plugin;

pub use matcher::Matcher;
pub use plugin::StopPlugin;

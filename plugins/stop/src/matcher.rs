//! Watches the text of one choice.

use crate::automaton::{Automaton, State};

/// Watches the text of one choice.
#[derive(Debug)]
pub struct Matcher {
    automaton: Automaton,
    state: State,
    keep: bool,
    stopped: Option<u32>,
}

impl Matcher {
    /// A matcher for these sequences; `keep` leaves the text that matched in the output.
    pub fn new(sequences: Vec<String>, keep: bool) -> Self {
        Self {
            automaton: Automaton::new(sequences),
            state: Automaton::START,
            keep,
            stopped: None,
        }
    }

    /// The next text. Returns what can be shown now, and the sequence that was found, by its place in the list. After
    /// that nothing more is shown.
    pub fn push(&mut self, text: String) -> (String, Option<u32>) {
        if self.stopped.is_some() {
            return (String::new(), self.stopped);
        }
        let before = self.state;
        let (after, found) = self.automaton.read(before, &text);
        self.state = after;
        // The text in hand is what was held and then `text`; `shown` counts from its start.
        let held = if self.keep {
            ""
        } else {
            self.automaton.held(before)
        };
        let shown = match found {
            Some((found, read)) => {
                self.stopped = Some(found.sequence);
                held.len() + read - if self.keep { 0 } else { found.length }
            }
            None if self.keep => text.len(),
            None => held.len() + text.len() - self.automaton.held(after).len(),
        };
        (join(held, text, shown), self.stopped)
    }

    /// The choice ended otherwise: what was held back.
    pub fn flush(&mut self) -> String {
        if self.stopped.is_some() || self.keep {
            return String::new();
        }
        let held = self.automaton.held(self.state).to_owned();
        self.state = Automaton::START;
        held
    }
}

/// The first `length` bytes of `held` followed by `text`. Copies only if text was held.
fn join(held: &str, mut text: String, length: usize) -> String {
    if held.is_empty() {
        text.truncate(length);
        text
    } else if length <= held.len() {
        held[..length].to_owned()
    } else {
        let mut joined = String::with_capacity(length);
        joined.push_str(held);
        joined.push_str(&text[..length - held.len()]);
        joined
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, string::string_regex};

    use super::*;

    /// What the module's documentation defines, by trying every end: the shown text and the sequence.
    fn by_definition(text: &str, sequences: &[String], keep: bool) -> (String, Option<u32>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let complete = (0..sequences.len())
                .filter(|&i| !sequences[i].is_empty() && text[..end].ends_with(&sequences[i]))
                // `max_by_key` takes the last of equals: go backwards so that it is the first listed.
                .rev()
                .max_by_key(|&i| sequences[i].len());
            if let Some(i) = complete {
                let shown = if keep { end } else { end - sequences[i].len() };
                return (text[..shown].to_owned(), Some(i as u32));
            }
        }
        (text.to_owned(), None)
    }

    /// The longest end of `text` that begins a sequence without completing it.
    fn must_hold(text: &str, sequences: &[String]) -> usize {
        (0..text.len())
            .filter(|&i| text.is_char_boundary(i))
            .find(|&i| {
                sequences
                    .iter()
                    .any(|s| s.len() > text.len() - i && s.starts_with(&text[i..]))
            })
            .map_or(0, |i| text.len() - i)
    }

    fn run(pieces: &[&str], sequences: &[&str], keep: bool) -> (String, Option<u32>) {
        let mut matcher = Matcher::new(sequences.iter().map(|&s| s.to_owned()).collect(), keep);
        let mut shown = String::new();
        for piece in pieces {
            let (text, stopped) = matcher.push((*piece).to_owned());
            shown.push_str(&text);
            if stopped.is_some() {
                return (shown, stopped);
            }
        }
        shown.push_str(&matcher.flush());
        (shown, None)
    }

    #[test]
    fn sequences_stop_where_they_are_complete() {
        /// Pieces, sequences, keep; shown, stopped: by the definition in the crate's documentation.
        type Row<'a> = (&'a [&'a str], &'a [&'a str], bool, &'a str, Option<u32>);
        #[rustfmt::skip]
        let table: &[Row<'_>] = &[
            (&["Hello\n\nWorld"], &["\n\n"], false, "Hello", Some(0)),
            // Inside a token, which LoRAX misses.
            (&["The", " foobar", " end"], &["oba"], false, "The fo", Some(0)),
            (&["The", " foobar", " end"], &["oba"], true, "The fooba", Some(0)),
            // Over tokens; a false start is shown after all.
            (&["<|", "im", "_e", "nd", "|>", " tail"], &["<|im_end|>"], false, "", Some(0)),
            (&["<|", "im", "_start", "|>"], &["<|im_end|>"], false, "<|im_start|>", None),
            // A false start that overlaps the true one.
            (&["aa", "ab", "aaab!"], &["aaab"], false, "", Some(0)),
            (&["aab", "aaab!"], &["aaab"], false, "aab", Some(0)),
            // The one that is complete first, though the other starts earlier.
            (&["xabcd"], &["abcd", "bc"], false, "xa", Some(1)),
            // Same end: the longest. Equal: the first listed.
            (&["xabc"], &["bc", "abc"], false, "x", Some(1)),
            (&["stop"], &["", "stop", "stop"], false, "", Some(1)),
            // A sequence that begins with another is never complete first.
            (&["abc"], &["abc", "ab"], false, "", Some(1)),
            // The end comes first: nothing is lost.
            (&["abc", "\n"], &["\n\n"], false, "abc\n", None),
            (&["Grüße"], &["ß"], false, "Grü", Some(0)),
            (&["日本", "語です"], &["本語"], false, "日", Some(0)),
            // é and è share their first byte.
            (&["caf\u{e9}"], &["\u{e8}"], false, "caf\u{e9}", None),
            (&["text"], &[""], false, "text", None),
            (&["text"], &[], false, "text", None),
        ];
        for &(pieces, sequences, keep, shown, stopped) in table {
            assert_eq!(
                run(pieces, sequences, keep),
                (shown.to_owned(), stopped),
                "{pieces:?} {sequences:?} keep={keep}"
            );
        }
    }

    #[test]
    fn nothing_follows_a_stop() {
        let mut matcher = Matcher::new(vec!["b".into()], false);
        assert_eq!(matcher.push("abc".into()), ("a".into(), Some(0)));
        assert_eq!(matcher.push("def".into()), (String::new(), Some(0)));
        assert_eq!(matcher.flush(), "");
    }

    /// Text over few letters, so that sequences are found, start falsely and overlap; with letters of 2, 3 and 4 bytes
    /// that share bytes.
    fn letters(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        let (from, to) = (length.start, length.end - 1);
        prop_oneof![
            string_regex(&format!("[ab]{{{from},{to}}}")).unwrap(),
            string_regex(&format!("[abé\u{e8}語\u{8a9f}🦀\u{1f981}]{{{from},{to}}}")).unwrap(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn any_text_any_pieces_any_sequences(
            pieces in vec(letters(0..6), 0..12),
            sequences in vec(letters(0..6), 0..6),
            keep: bool,
        ) {
            let text = pieces.concat();
            let (expected, expected_stop) = by_definition(&text, &sequences, keep);
            let mut matcher = Matcher::new(sequences.clone(), keep);
            let (mut seen, mut shown, mut stopped) = (String::new(), String::new(), None);
            for piece in &pieces {
                let (emit, stop) = matcher.push(piece.clone());
                seen.push_str(piece);
                shown.push_str(&emit);
                if stop.is_some() {
                    stopped = stop;
                    break;
                }
                // Never more than is safe, never less than is possible.
                let held = if keep { 0 } else { must_hold(&seen, &sequences) };
                prop_assert_eq!(&shown, &seen[..seen.len() - held]);
            }
            if stopped.is_none() {
                shown.push_str(&matcher.flush());
            }
            prop_assert_eq!((shown, stopped), (expected, expected_stop));
        }

        /// Aho and Corasick, theorem 2: fewer than two transitions for each byte.
        #[test]
        fn the_work_is_linear(
            pieces in vec(string_regex("[ab]{0,40}").unwrap(), 0..40),
            sequences in vec(string_regex("a{0,30}b?a{0,30}c").unwrap(), 0..20),
        ) {
            let mut matcher = Matcher::new(sequences, false);
            let bytes: usize = pieces.iter().map(String::len).sum();
            for piece in pieces {
                matcher.push(piece);
            }
            prop_assert!(matcher.automaton.lookups.get() <= 2 * bytes);
        }
    }
}

//! Names of adapters with `*` for any text.

/// A name of adapters, in which `*` stands for any text, also for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// From its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a name fits. Each part between stars is taken where it comes first, which is enough: a later place
    /// leaves less text for the parts that follow.
    pub fn fits(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        // Pattern, name, whether it fits.
        let table = [
            ("*", "", true),
            ("*", "any/thing", true),
            ("pirate", "pirate", true),
            ("pirate", "pirates", false),
            ("pirate", "", false),
            ("acme/*", "acme/caps", true),
            ("acme/*", "acme/", true),
            ("acme/*", "acmes/caps", false),
            ("*-v2", "caps-v2", true),
            ("*-v2", "caps-v2-v3", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-c-b-c", true),
            ("a*b*c", "acb", false),
            // The parts must not overlap.
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("*a*a*", "a", false),
            ("**", "x", true),
            ("grün*", "grün-1", true),
        ];
        for (pattern, name, fits) in table {
            assert_eq!(Pattern::new(pattern).fits(name), fits, "{pattern} {name}");
        }
    }
}

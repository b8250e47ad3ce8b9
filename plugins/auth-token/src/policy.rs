//! Who may do what, over plain values.

use std::collections::BTreeMap;

use crate::pattern::Pattern;

/// A SHA-256.
pub type Sha256 = [u8; 32];

/// The configured policy.
#[derive(Debug)]
pub enum Policy {
    /// Everybody, on the account of one tenant.
    Open {
        /// The tenant.
        tenant: String,
    },
    /// Those who are in the table.
    Tokens(Table),
}

/// Tokens by their hashes. The hashes stand together so that a look-up touches few pages of a fresh instance.
#[derive(Debug, Default)]
pub struct Table {
    digests: Vec<Sha256>,
    tokens: Vec<Token>,
    subjects: BTreeMap<String, usize>,
}

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Who, for the audit log. No two tokens have the same.
    pub subject: String,
    /// On whose account.
    pub tenant: String,
    /// The adapters that it may use.
    pub adapters: Vec<Pattern>,
    /// Whether it may use the base model without an adapter.
    pub base: bool,
    /// Higher goes first.
    pub priority: i32,
    /// The most tokens of a choice.
    pub max_tokens: Option<u32>,
    /// The most sequences at a time.
    pub max_concurrent: Option<u32>,
}

impl Table {
    /// The table. Digests and subjects must each be unique.
    pub fn new(mut tokens: Vec<(Sha256, Token)>) -> Self {
        tokens.sort_by_key(|&(digest, _)| digest);
        let (digests, tokens): (Vec<_>, Vec<Token>) = tokens.into_iter().unzip();
        let subjects = tokens
            .iter()
            .enumerate()
            .map(|(i, token)| (token.subject.clone(), i))
            .collect();
        Self {
            digests,
            tokens,
            subjects,
        }
    }

    fn by_digest(&self, digest: &Sha256) -> Option<&Token> {
        Some(&self.tokens[self.digests.binary_search(digest).ok()?])
    }

    fn by_subject(&self, subject: &str) -> Option<&Token> {
        Some(&self.tokens[*self.subjects.get(subject)?])
    }
}

/// What `authenticate` says to a caller who is not refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Caller<'a> {
    /// Known by its token.
    Known(&'a Token),
    /// Nothing in the head: the body decides.
    Undecided,
}

/// What a caller may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Allowed<'a> {
    /// On whose account.
    pub tenant: &'a str,
    /// Priority and limits; none in the mode `open`.
    pub token: Option<&'a Token>,
    /// Whether the credential at hand is for the adapter's source.
    pub callers_credential: bool,
}

/// A refusal.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 401: no token.
    Missing,
    /// 401: a token that is not in the table.
    Unknown,
    /// 403: this adapter is not for this token.
    Adapter(String),
    /// 403: the base model is not for this token.
    Base,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// The list of models.
    Models,
    /// The base model.
    Base,
    /// An adapter.
    Adapter(&'a str),
}

impl Policy {
    /// By the head alone. `digest` is the credential's hash in hexadecimal; empty if there is none.
    pub fn authenticate(&self, digest: &str) -> Result<Caller<'_>, Refusal> {
        match self {
            Self::Open { .. } => Ok(Caller::Undecided),
            Self::Tokens(_) if digest.is_empty() => Ok(Caller::Undecided),
            Self::Tokens(table) => find(table, digest).map(Caller::Known).ok_or(Refusal::Unknown),
        }
    }

    /// With the body. `subject` is whom [`Self::authenticate`] knew; `digest` belongs to the body's token, or else to
    /// the head's.
    pub fn authorize(
        &self,
        subject: Option<&str>,
        digest: &str,
        wanted: Wanted<'_>,
    ) -> Result<Allowed<'_>, Refusal> {
        let table = match self {
            Self::Open { tenant } => {
                return Ok(Allowed {
                    tenant,
                    token: None,
                    callers_credential: !digest.is_empty(),
                });
            }
            Self::Tokens(table) => table,
        };
        // A token of ours in the body takes the place of the one in the head; a foreign one is for the source.
        let ours = find(table, digest);
        let known = subject.and_then(|subject| table.by_subject(subject));
        let token = match ours.or(known) {
            Some(token) => token,
            None if digest.is_empty() => return Err(Refusal::Missing),
            None => return Err(Refusal::Unknown),
        };
        match wanted {
            Wanted::Base if !token.base => return Err(Refusal::Base),
            Wanted::Adapter(name) if !token.adapters.iter().any(|pattern| pattern.fits(name)) => {
                return Err(Refusal::Adapter(name.to_owned()));
            }
            _ => {}
        }
        Ok(Allowed {
            tenant: &token.tenant,
            token: Some(token),
            callers_credential: ours.is_none() && !digest.is_empty(),
        })
    }

    /// Checks that each token of the table is found and stays within its bounds, and that others are refused.
    pub fn self_test(&self) -> Result<(), String> {
        let Self::Tokens(table) = self else {
            return Ok(());
        };
        for (digest, token) in table.digests.iter().zip(&table.tokens) {
            let digest = to_hex(digest);
            if self.authenticate(&digest) != Ok(Caller::Known(token))
                || table.by_subject(&token.subject) != Some(token)
                || self.authorize(None, &digest, Wanted::Base).is_ok() != token.base
            {
                return Err(format!(
                    "the token of `{}` is not found in the table",
                    token.subject
                ));
            }
        }
        let stranger = (0..=u8::MAX)
            .map(|n| [n; 32])
            .find(|digest| table.by_digest(digest).is_none());
        let stranger = stranger.as_ref().map(to_hex).unwrap_or_default();
        if self.authenticate(&stranger) != Err(Refusal::Unknown)
            || self.authorize(None, &stranger, Wanted::Models) != Err(Refusal::Unknown)
            || self.authorize(None, "", Wanted::Models) != Err(Refusal::Missing)
        {
            return Err("a token that is not in the table was not refused".into());
        }
        Ok(())
    }
}

fn find<'a>(table: &'a Table, digest: &str) -> Option<&'a Token> {
    table.by_digest(&from_hex(digest)?)
}

/// 64 hexadecimal digits.
pub fn from_hex(text: &str) -> Option<Sha256> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = ((pair[0] as char).to_digit(16)?, (pair[1] as char).to_digit(16)?);
        *byte = (high << 4 | low) as u8;
    }
    Some(bytes)
}

/// In lower case.
pub fn to_hex(digest: &Sha256) -> String {
    digest
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|d| char::from_digit(d.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(subject: &str, adapters: &[&str], base: bool) -> Token {
        Token {
            subject: subject.into(),
            tenant: "acme".into(),
            adapters: adapters.iter().map(|&text| Pattern::new(text)).collect(),
            base,
            priority: 0,
            max_tokens: None,
            max_concurrent: None,
        }
    }

    fn policy() -> Policy {
        Policy::Tokens(Table::new(vec![
            ([9; 32], token("both", &["acme/*", "pirate"], true)),
            ([1; 32], token("adapters", &["*"], false)),
            ([5; 32], token("base", &[], true)),
        ]))
    }

    fn digest(n: u8) -> String {
        to_hex(&[n; 32])
    }

    #[test]
    fn open_lets_everybody_in_and_passes_the_token_on() {
        let policy = Policy::Open {
            tenant: "default".into(),
        };
        assert_eq!(policy.authenticate(&digest(1)), Ok(Caller::Undecided));
        for (sent, callers_credential) in [("", false), (digest(1).as_str(), true)] {
            assert_eq!(
                policy.authorize(None, sent, Wanted::Adapter("any/thing")),
                Ok(Allowed {
                    tenant: "default",
                    token: None,
                    callers_credential
                })
            );
        }
    }

    #[test]
    fn a_token_is_looked_up_by_its_hash() {
        let policy = policy();
        let subject = |n| match policy.authenticate(&digest(n)) {
            Ok(Caller::Known(token)) => token.subject.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!([subject(1), subject(5), subject(9)], ["adapters", "base", "both"]);
        assert_eq!(policy.authenticate(&digest(2)), Err(Refusal::Unknown));
        assert_eq!(policy.authenticate(""), Ok(Caller::Undecided));
        assert_eq!(policy.self_test(), Ok(()));
    }

    #[test]
    fn adapters_and_the_base_model_are_allowed_apart() {
        let policy = policy();
        let ask = |n, wanted| {
            policy
                .authorize(None, &digest(n), wanted)
                .map(|allowed| allowed.tenant)
        };
        assert_eq!(ask(9, Wanted::Base), Ok("acme"));
        assert_eq!(ask(9, Wanted::Adapter("acme/caps")), Ok("acme"));
        assert_eq!(ask(9, Wanted::Adapter("pirate")), Ok("acme"));
        assert_eq!(
            ask(9, Wanted::Adapter("robot")),
            Err(Refusal::Adapter("robot".into()))
        );
        assert_eq!(ask(1, Wanted::Adapter("robot")), Ok("acme"));
        assert_eq!(ask(1, Wanted::Base), Err(Refusal::Base));
        assert_eq!(
            ask(5, Wanted::Adapter("pirate")),
            Err(Refusal::Adapter("pirate".into()))
        );
        assert_eq!(ask(5, Wanted::Models), Ok("acme"));
        assert_eq!(ask(2, Wanted::Models), Err(Refusal::Unknown));
        assert_eq!(policy.authorize(None, "", Wanted::Models), Err(Refusal::Missing));
    }

    #[test]
    fn the_body_can_carry_a_token_of_ours_or_one_for_the_source() {
        let policy = policy();
        let ask = |who, digest: &str| {
            let allowed = policy.authorize(who, digest, Wanted::Adapter("acme/caps"))?;
            let subject = allowed.token.map(|token| token.subject.as_str());
            Ok((subject.unwrap_or("nobody"), allowed.callers_credential))
        };
        // The head's own token comes here when the body has none.
        assert_eq!(ask(Some("both"), &digest(9)), Ok(("both", false)));
        // A foreign token in the body is for the source.
        assert_eq!(ask(Some("both"), &digest(77)), Ok(("both", true)));
        // Ours in the body: its own rights, not the head's.
        assert_eq!(ask(Some("both"), &digest(1)), Ok(("adapters", false)));
        assert_eq!(
            ask(Some("both"), &digest(5)),
            Err(Refusal::Adapter("acme/caps".into()))
        );
        assert_eq!(ask(None, &digest(1)), Ok(("adapters", false)));
        assert_eq!(ask(None, &digest(77)), Err(Refusal::Unknown));
        assert_eq!(ask(Some("who?"), &digest(77)), Err(Refusal::Unknown));
    }

    #[test]
    fn hexadecimal_is_read_strictly() {
        let text = "00ff".repeat(16);
        assert_eq!(from_hex(&text).map(|digest| to_hex(&digest)), Some(text.clone()));
        assert_eq!(from_hex(&text.to_uppercase()), from_hex(&text));
        let bad = [
            text[1..].to_owned(),
            format!("{text}0"),
            text.replacen('f', "g", 1),
            "é".repeat(32),
        ];
        assert_eq!(bad.map(|text| from_hex(&text)), [None; 4]);
    }
}

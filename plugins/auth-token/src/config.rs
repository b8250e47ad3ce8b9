//! Reads the configuration, strictly. An error names the entry and the key, and never shows a value: somebody may have
//! put a token where its hash belongs.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{
    pattern::Pattern,
    policy::{Policy, Sha256, Table, Token, from_hex, to_hex},
};

/// The JSON Schema of the configuration.
pub(crate) const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "mode": {"enum": ["open", "tokens"], "default": "open"},
    "tenant": {"type": "string", "minLength": 1, "default": "default", "description": "Mode `open`: the tenant of all callers."},
    "tokens": {"type": "array", "minItems": 1, "description": "Mode `tokens`.", "items": {
      "type": "object",
      "additionalProperties": false,
      "required": ["sha256", "tenant"],
      "properties": {
        "sha256": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$", "description": "printf %s TOKEN | sha256sum"},
        "tenant": {"type": "string", "minLength": 1},
        "subject": {"type": "string", "minLength": 1, "description": "Who, in the audit log; unique. Default: the tenant and the first digits of the hash."},
        "adapters": {"type": "array", "items": {"type": "string", "minLength": 1}, "default": [], "description": "Adapters it may use; * stands for any text."},
        "base": {"type": "boolean", "default": true, "description": "Whether it may use the base model."},
        "priority": {"type": "integer", "default": 0, "description": "Higher goes first."},
        "max_tokens": {"type": "integer", "minimum": 1},
        "max_concurrent": {"type": "integer", "minimum": 1}
      }
    }}
  }
}"#;

/// SHA-256 of no bytes: what a script gives that hashes an unset variable.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Reads the configuration.
pub(crate) fn parse(text: &str) -> Result<Policy, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let value = serde_json::from_str(text).map_err(|e| format!("the configuration is not JSON: {e}"))?;
    let mut fields = Fields::of("the configuration", value)?;
    let mode = fields.text("mode")?;
    let policy = match mode.as_deref() {
        None | Some("open") => {
            if fields.map.contains_key("tokens") {
                return Err("`tokens` has no effect in the mode `open`: set `mode` to `tokens`".into());
            }
            Policy::Open {
                tenant: fields.text("tenant")?.unwrap_or_else(|| "default".into()),
            }
        }
        Some("tokens") => {
            let tokens = fields.list("tokens")?.unwrap_or_default();
            if tokens.is_empty() {
                return Err("the mode `tokens` needs at least one entry in `tokens`".into());
            }
            Policy::Tokens(table(tokens)?)
        }
        Some(_) => return Err("`mode` must be `open` or `tokens`".into()),
    };
    fields.end()?;
    Ok(policy)
}

fn table(entries: Vec<Value>) -> Result<Table, String> {
    let mut tokens = Vec::with_capacity(entries.len());
    let mut digests = BTreeMap::new();
    let mut subjects = BTreeMap::new();
    for (i, entry) in entries.into_iter().enumerate() {
        let (digest, token) = token(Fields::of(format!("tokens[{i}]"), entry)?)?;
        if let Some(first) = digests.insert(digest, i) {
            return Err(format!("tokens[{i}] has the same `sha256` as tokens[{first}]"));
        }
        if let Some(first) = subjects.insert(token.subject.clone(), i) {
            return Err(format!(
                "tokens[{i}] has the same `subject` as tokens[{first}]: each token needs one of its own"
            ));
        }
        tokens.push((digest, token));
    }
    Ok(Table::new(tokens))
}

fn token(mut fields: Fields) -> Result<(Sha256, Token), String> {
    let place = fields.place.clone();
    let text = fields
        .text("sha256")?
        .ok_or_else(|| format!("{place}: `sha256` is missing"))?;
    let digest = from_hex(&text).ok_or_else(|| {
        format!(
            "{place}: `sha256` must be 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints them"
        )
    })?;
    if to_hex(&digest) == NOTHING {
        return Err(format!("{place}: `sha256` is the hash of nothing"));
    }
    let tenant = fields
        .text("tenant")?
        .ok_or_else(|| format!("{place}: `tenant` is missing"))?;
    let subject = match fields.text("subject")? {
        Some(subject) => subject,
        None => format!("{tenant}:{}", &to_hex(&digest)[..8]),
    };
    let mut adapters = Vec::new();
    for (i, name) in fields
        .list("adapters")?
        .unwrap_or_default()
        .into_iter()
        .enumerate()
    {
        match name {
            Value::String(name) if !name.is_empty() => adapters.push(Pattern::new(name)),
            _ => {
                return Err(format!(
                    "{place}: `adapters[{i}]` must be a name, or a pattern with `*`"
                ));
            }
        }
    }
    let token = Token {
        subject,
        tenant,
        adapters,
        base: fields.flag("base")?.unwrap_or(true),
        priority: fields.integer("priority", i32::MIN.into())?.unwrap_or(0),
        max_tokens: fields.integer("max_tokens", 1)?,
        max_concurrent: fields.integer("max_concurrent", 1)?,
    };
    fields.end()?;
    Ok((digest, token))
}

/// The keys of an object that have not been read yet.
struct Fields {
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    fn of(place: impl Into<String>, value: Value) -> Result<Self, String> {
        let place = place.into();
        match value {
            Value::Object(map) => Ok(Self { place, map }),
            _ => Err(format!("{place} must be an object")),
        }
    }

    fn wrong(&self, key: &str, expected: &str) -> String {
        format!("{}: `{key}` must be {expected}", self.place)
    }

    /// A text that is not empty.
    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a text that is not empty")),
        }
    }

    fn list(&mut self, key: &str) -> Result<Option<Vec<Value>>, String> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(key, "a list")),
        }
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>, String> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A whole number from `least` to the largest of its type.
    fn integer<T: TryFrom<i64>>(&mut self, key: &str, least: i64) -> Result<Option<T>, String> {
        let Some(value) = self.map.remove(key) else {
            return Ok(None);
        };
        match value
            .as_i64()
            .filter(|&n| n >= least)
            .and_then(|n| T::try_from(n).ok())
        {
            Some(n) => Ok(Some(n)),
            None if least == 1 => Err(self.wrong(key, "a whole number of at least 1 (32 bits)")),
            None => Err(self.wrong(key, "a whole number (32 bits)")),
        }
    }

    /// Refuses what has not been read.
    fn end(self) -> Result<(), String> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("{}: there is no setting `{key}`", self.place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Caller, Wanted};

    fn hash(n: u8) -> String {
        to_hex(&[n; 32])
    }

    #[test]
    fn nothing_configured_is_open() {
        for text in ["", "{}", r#"{"mode":"open"}"#] {
            assert!(
                matches!(parse(text), Ok(Policy::Open { tenant }) if tenant == "default"),
                "{text}"
            );
        }
        let named = parse(r#"{"tenant":"lab"}"#);
        assert!(matches!(named, Ok(Policy::Open { tenant }) if tenant == "lab"));
    }

    #[test]
    fn an_entry_says_what_its_token_may_do() {
        let text = format!(
            r#"{{"mode":"tokens","tokens":[
                {{"sha256":"{}","tenant":"acme","subject":"batch","adapters":["acme/*"],"base":false,
                  "priority":-2,"max_tokens":1000,"max_concurrent":8}},
                {{"sha256":"{}","tenant":"lab"}}]}}"#,
            hash(1),
            hash(0xab)
        );
        let policy = parse(&text).unwrap();
        let known = |n| match policy.authenticate(&hash(n)) {
            Ok(Caller::Known(token)) => token.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            known(1),
            Token {
                subject: "batch".into(),
                tenant: "acme".into(),
                adapters: vec![Pattern::new("acme/*")],
                base: false,
                priority: -2,
                max_tokens: Some(1000),
                max_concurrent: Some(8),
            }
        );
        // What is not said: no adapter, the base model, no limit.
        let lab = known(0xab);
        assert_eq!(
            (lab.subject.as_str(), lab.base, lab.max_tokens),
            ("lab:abababab", true, None)
        );
        assert!(
            policy
                .authorize(None, &hash(0xab), Wanted::Adapter("pirate"))
                .is_err()
        );
        assert_eq!(policy.self_test(), Ok(()));
    }

    #[test]
    fn errors_name_the_entry_and_show_no_value() {
        let good = format!(r#"{{"sha256":"{}","tenant":"t"}}"#, hash(1));
        let entry = |text: &str| format!(r#"{{"mode":"tokens","tokens":[{good},{text}]}}"#);
        let with = |more: &str| entry(&format!(r#"{{"sha256":"{}","tenant":"t2",{more}}}"#, hash(2)));
        let table = [
            ("[]".to_owned(), "the configuration must be an object"),
            (
                "{".to_owned(),
                "the configuration is not JSON: EOF while parsing an object at line 1 column 1",
            ),
            (r#"{"mode":"secret"}"#.into(), "`mode` must be `open` or `tokens`"),
            (
                r#"{"mode":7}"#.into(),
                "the configuration: `mode` must be a text that is not empty",
            ),
            (
                r#"{"mode":"tokens"}"#.into(),
                "the mode `tokens` needs at least one entry in `tokens`",
            ),
            (
                r#"{"mode":"tokens","tokens":{}}"#.into(),
                "the configuration: `tokens` must be a list",
            ),
            (
                format!(r#"{{"tokens":[{good}]}}"#),
                "`tokens` has no effect in the mode `open`: set `mode` to `tokens`",
            ),
            (
                format!(r#"{{"mode":"tokens","tokens":[{good}],"tenant":"x"}}"#),
                "the configuration: there is no setting `tenant`",
            ),
            (entry(r#""secret""#), "tokens[1] must be an object"),
            (entry(r#"{"tenant":"t"}"#), "tokens[1]: `sha256` is missing"),
            (
                entry(r#"{"sha256":"secret","tenant":"t"}"#),
                "tokens[1]: `sha256` must be 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints them",
            ),
            (
                entry(&format!(r#"{{"sha256":"{NOTHING}","tenant":"t"}}"#)),
                "tokens[1]: `sha256` is the hash of nothing",
            ),
            (
                entry(&format!(r#"{{"sha256":"{}"}}"#, hash(2))),
                "tokens[1]: `tenant` is missing",
            ),
            (entry(&good), "tokens[1] has the same `sha256` as tokens[0]"),
            (
                with(r#""subject":"t:01010101""#),
                "tokens[1] has the same `subject` as tokens[0]: each token needs one of its own",
            ),
            (
                with(r#""adapters":["a",""]"#),
                "tokens[1]: `adapters[1]` must be a name, or a pattern with `*`",
            ),
            (with(r#""adapters":"a""#), "tokens[1]: `adapters` must be a list"),
            (with(r#""base":1"#), "tokens[1]: `base` must be true or false"),
            (
                with(r#""priority":1.5"#),
                "tokens[1]: `priority` must be a whole number (32 bits)",
            ),
            (
                with(r#""priority":3000000000"#),
                "tokens[1]: `priority` must be a whole number (32 bits)",
            ),
            (
                with(r#""max_tokens":0"#),
                "tokens[1]: `max_tokens` must be a whole number of at least 1 (32 bits)",
            ),
            (
                with(r#""max_concurent":1"#),
                "tokens[1]: there is no setting `max_concurent`",
            ),
        ];
        for (text, expected) in table {
            let error = parse(&text).err();
            assert_eq!(error.as_deref(), Some(expected), "{text}");
            assert!(!expected.contains("secret"));
        }
    }

    #[test]
    fn the_schema_is_json_and_knows_every_setting() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&schema["properties"]), ["mode", "tenant", "tokens"]);
        assert_eq!(
            names(&schema["properties"]["tokens"]["items"]["properties"]),
            [
                "adapters",
                "base",
                "max_concurrent",
                "max_tokens",
                "priority",
                "sha256",
                "subject",
                "tenant"
            ]
        );
    }
}

//! The list of models and one of it.

use heddle_plugin::{Model, Reply};

use super::json;
use crate::Fault;

/// `GET /v1/models`, or `GET /v1/models/{wanted}`.
pub fn reply(models: &[Model], wanted: Option<&str>) -> Reply {
    let mut out = String::new();
    match wanted {
        None => {
            out += r#"{"object":"list","data":"#;
            json::list(&mut out, ['[', ']'], models, write);
            out.push('}');
        }
        Some(wanted) => match models.iter().find(|model| model.id == wanted) {
            Some(model) => write(&mut out, model),
            None => return Fault::no_model(wanted).into_reply(),
        },
    }
    super::document(out)
}

/// OpenAI's fields, and vLLM's `parent` and `max_model_len`.
fn write(out: &mut String, model: &Model) {
    *out += r#"{"id":"#;
    json::text(out, &model.id);
    *out += r#","object":"model","created":"#;
    json::integer(out, model.created);
    *out += r#","owned_by":"#;
    json::text(out, &model.owner);
    *out += r#","parent":"#;
    json::text_or_null(out, model.parent.as_deref());
    if let Some(context) = model.context {
        *out += r#","max_model_len":"#;
        json::integer(out, context);
    }
    out.push('}');
}

/// The model that a path names behind its prefix, percent-decoded (RFC 3986, 2.1).
pub fn decode(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [byte, after @ ..] = rest {
        let digit = |i: usize| after.get(i).and_then(|&byte| (byte as char).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn served() -> Vec<Model> {
        let model = |id: &str, parent: Option<&str>, context| Model {
            id: id.into(),
            created: 1_700_000_000,
            owner: "heddle".into(),
            parent: parent.map(Into::into),
            context,
        };
        vec![
            model("base", None, Some(2048)),
            model("acme/caps \"2\"", Some("base"), None),
        ]
    }

    #[test]
    fn the_list_has_openais_fields_and_vllms() {
        let reply = reply(&served(), None);
        let value: Value = serde_json::from_slice(&reply.body).unwrap();
        let expected = json!({"object": "list", "data": [
            {"id": "base", "object": "model", "created": 1_700_000_000, "owned_by": "heddle", "parent": null,
             "max_model_len": 2048},
            {"id": "acme/caps \"2\"", "object": "model", "created": 1_700_000_000, "owned_by": "heddle",
             "parent": "base"},
        ]});
        assert_eq!((reply.status, value), (200, expected));
    }

    #[test]
    fn one_model_is_found_by_its_name_or_is_a_404() {
        let found = reply(&served(), Some(&decode("acme%2Fcaps%20%222%22")));
        let value: Value = serde_json::from_slice(&found.body).unwrap();
        assert_eq!((found.status, &value["id"]), (200, &json!("acme/caps \"2\"")));
        let missing = reply(&served(), Some("gpt-4"));
        let value: Value = serde_json::from_slice(&missing.body).unwrap();
        assert_eq!(
            (missing.status, &value["error"]["code"]),
            (404, &json!("model_not_found"))
        );
        assert_eq!(value["error"]["param"], "model");
    }

    #[test]
    fn paths_are_decoded_once_and_never_fail() {
        let table = [
            ("a%2Fb", "a/b"),
            ("a/b", "a/b"),
            ("%25", "%"),
            ("%2", "%2"),
            ("%zz", "%zz"),
            ("%ff", "\u{fffd}"),
        ];
        for (path, expected) in table {
            assert_eq!(decode(path), expected);
        }
    }
}

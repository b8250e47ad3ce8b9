//! Errors as OpenAI writes them: <https://platform.openai.com/docs/guides/error-codes>. Beside the nested object stands
//! LoRAX's `error_type`, so that clients of either can tell the kinds apart.

use std::borrow::Cow;

use heddle_plugin::{Problem, ProblemKind, Reply};

use crate::answer::json;

/// An error to answer with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: Kind,
    /// `error.code`.
    pub code: Option<Cow<'static, str>>,
    /// `error.param`: the field at fault.
    pub parameter: Option<String>,
    /// `error.message`.
    pub message: String,
    /// LoRAX's `error_type`.
    pub error_type: Cow<'static, str>,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

/// OpenAI's types of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The client can mend it.
    InvalidRequest,
    /// The client can try again later.
    RateLimit,
    /// The server's side.
    Server,
}

impl Kind {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::RateLimit => "rate_limit_error",
            Self::Server => "server_error",
        }
    }
}

impl Fault {
    /// 400: not JSON.
    pub fn syntax(message: String) -> Self {
        Self {
            status: 400,
            ..Self::validation("invalid_json", None, message)
        }
    }

    /// 422: JSON, but not an object.
    pub fn not_an_object() -> Self {
        Self::validation("invalid_type", None, "The body must be a JSON object".into())
    }

    /// 422: a field that must be there is not.
    pub fn missing(field: &str) -> Self {
        Self::validation(
            "missing_required_parameter",
            Some(field.into()),
            format!("`{field}` is required"),
        )
    }

    /// 422: a field of the wrong type.
    pub fn wrong_type(field: String, expected: &str, found: &str) -> Self {
        let message = format!("`{field}` must be {expected}, not {found}");
        Self::validation("invalid_type", Some(field), message)
    }

    /// 422: a field whose value is not allowed.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::validation("invalid_value", Some(field.into()), message.into())
    }

    /// 422: a known field that this server cannot honour.
    pub fn unsupported(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::validation("unsupported_parameter", Some(field.into()), message.into())
    }

    fn validation(code: &'static str, parameter: Option<String>, message: String) -> Self {
        Self {
            status: 422,
            kind: Kind::InvalidRequest,
            code: Some(code.into()),
            parameter,
            message,
            error_type: "validation".into(),
            retry_after: None,
        }
    }

    /// 404: no such model.
    pub fn no_model(name: &str) -> Self {
        Self {
            status: 404,
            error_type: "generation".into(),
            ..Self::validation(
                "model_not_found",
                Some("model".into()),
                format!("The model `{name}` does not exist: GET /v1/models lists those that do"),
            )
        }
    }

    /// Any failure of the host's, the engine's or another plugin's.
    pub fn of(problem: Problem) -> Self {
        use Kind::{InvalidRequest, RateLimit, Server};
        use ProblemKind as Is;
        let client = problem.status < 500;
        let (kind, code, error_type): (_, Option<&'static str>, Cow<'static, str>) = match problem.kind {
            Is::InvalidRequest => (InvalidRequest, None, "validation".into()),
            Is::Unauthenticated => (InvalidRequest, Some("invalid_api_key"), "authentication".into()),
            Is::Forbidden => (
                InvalidRequest,
                Some("insufficient_permissions"),
                "authorization".into(),
            ),
            Is::UnknownRoute => (InvalidRequest, Some("unknown_url"), "not_found".into()),
            Is::ModelNotFound => (InvalidRequest, Some("model_not_found"), "generation".into()),
            Is::AdapterUnavailable => (Server, Some("adapter_unavailable"), "generation".into()),
            Is::Template => (InvalidRequest, Some("template_error"), "template_error".into()),
            Is::TooLarge => (InvalidRequest, Some("request_too_large"), "validation".into()),
            Is::Timeout => (InvalidRequest, Some("request_timeout"), "timeout".into()),
            Is::Overloaded if client => (RateLimit, Some("rate_limit_exceeded"), "overloaded".into()),
            Is::Overloaded => (Server, Some("overloaded"), "overloaded".into()),
            // LoRAX: 424 if the engine refused, 500 if it broke off.
            Is::GenerationFailed if client => (Server, Some("generation_failed"), "generation".into()),
            Is::GenerationFailed => (Server, Some("generation_failed"), "incomplete_generation".into()),
            Is::PluginFailed => (Server, Some("plugin_failed"), "plugin".into()),
            Is::Internal => (Server, Some("internal_error"), "internal".into()),
            Is::Other(kind) => (if client { InvalidRequest } else { Server }, None, kind.into()),
        };
        let parameter = match error_type.as_ref() {
            "template_error" => problem.parameter.or_else(|| Some("messages".into())),
            _ if code == Some("model_not_found") => problem.parameter.or_else(|| Some("model".into())),
            _ => problem.parameter,
        };
        Self {
            status: problem.status,
            kind,
            code: problem.code.map(Cow::Owned).or(code.map(Cow::Borrowed)),
            parameter,
            message: problem.message,
            error_type,
            retry_after: problem.retry_after,
        }
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        let mut out = String::from(r#"{"error":{"message":"#);
        json::text(&mut out, &self.message);
        out += r#","type":"#;
        json::text(&mut out, self.kind.as_str());
        out += r#","param":"#;
        json::text_or_null(&mut out, self.parameter.as_deref());
        out += r#","code":"#;
        json::text_or_null(&mut out, self.code.as_deref());
        out += r#"},"error_type":"#;
        json::text(&mut out, &self.error_type);
        out.push('}');
        out
    }

    /// The answer.
    pub fn into_reply(self) -> Reply {
        let mut headers = Vec::new();
        if let Some(seconds) = self.retry_after {
            headers.push(("retry-after".to_owned(), seconds.to_string()));
        }
        if self.status == 401 {
            headers.push(("www-authenticate".to_owned(), "Bearer".to_owned()));
        }
        Reply {
            status: self.status,
            content_type: json::CONTENT_TYPE.into(),
            headers,
            body: self.to_json().into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_problem_has_openais_type_and_code_and_loraxs_error_type() {
        use ProblemKind as Is;
        // Kind, status; type, code, param, error_type. OpenAI: its guide to error codes. LoRAX: its table of statuses
        // (422 validation and template_error, 424 generation, 429 overloaded, 500 incomplete_generation).
        let table = [
            (
                Is::InvalidRequest,
                422,
                "invalid_request_error",
                None,
                Some("n"),
                "validation",
            ),
            (
                Is::Unauthenticated,
                401,
                "invalid_request_error",
                Some("invalid_api_key"),
                None,
                "authentication",
            ),
            (
                Is::Forbidden,
                403,
                "invalid_request_error",
                Some("insufficient_permissions"),
                None,
                "authorization",
            ),
            (
                Is::UnknownRoute,
                404,
                "invalid_request_error",
                Some("unknown_url"),
                None,
                "not_found",
            ),
            (
                Is::ModelNotFound,
                404,
                "invalid_request_error",
                Some("model_not_found"),
                Some("model"),
                "generation",
            ),
            (
                Is::AdapterUnavailable,
                424,
                "server_error",
                Some("adapter_unavailable"),
                None,
                "generation",
            ),
            (
                Is::Template,
                422,
                "invalid_request_error",
                Some("template_error"),
                Some("messages"),
                "template_error",
            ),
            (
                Is::TooLarge,
                413,
                "invalid_request_error",
                Some("request_too_large"),
                None,
                "validation",
            ),
            (
                Is::Timeout,
                408,
                "invalid_request_error",
                Some("request_timeout"),
                None,
                "timeout",
            ),
            (
                Is::Overloaded,
                429,
                "rate_limit_error",
                Some("rate_limit_exceeded"),
                None,
                "overloaded",
            ),
            (
                Is::Overloaded,
                503,
                "server_error",
                Some("overloaded"),
                None,
                "overloaded",
            ),
            (
                Is::GenerationFailed,
                424,
                "server_error",
                Some("generation_failed"),
                None,
                "generation",
            ),
            (
                Is::GenerationFailed,
                500,
                "server_error",
                Some("generation_failed"),
                None,
                "incomplete_generation",
            ),
            (
                Is::PluginFailed,
                500,
                "server_error",
                Some("plugin_failed"),
                None,
                "plugin",
            ),
            (
                Is::Internal,
                500,
                "server_error",
                Some("internal_error"),
                None,
                "internal",
            ),
            (
                Is::Other("quota".into()),
                402,
                "invalid_request_error",
                None,
                None,
                "quota",
            ),
            (Is::Other("moon".into()), 507, "server_error", None, None, "moon"),
        ];
        for (kind, status, openai, code, parameter, error_type) in table {
            let problem = Problem {
                status,
                kind: kind.clone(),
                code: None,
                message: "It \"failed\".\n".into(),
                parameter: (kind == Is::InvalidRequest).then(|| "n".into()),
                retry_after: None,
            };
            let fault = Fault::of(problem);
            assert_eq!(fault.status, status);
            let value: Value = serde_json::from_str(&fault.to_json()).unwrap();
            let error =
                json!({"message": "It \"failed\".\n", "type": openai, "param": parameter, "code": code});
            assert_eq!(
                value,
                json!({"error": error, "error_type": error_type}),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn the_problems_own_code_wins_and_headers_say_what_to_do() {
        let problem = |status, kind, retry_after| Problem {
            status,
            kind,
            code: Some("own_code".into()),
            message: String::new(),
            parameter: None,
            retry_after,
        };
        let reply = Fault::of(problem(429, ProblemKind::Overloaded, Some(3))).into_reply();
        assert_eq!(reply.headers, [("retry-after".to_owned(), "3".to_owned())]);
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "own_code");
        // RFC 9110, 11.6.1: a 401 names the scheme.
        let reply = Fault::of(problem(401, ProblemKind::Unauthenticated, None)).into_reply();
        assert_eq!(
            reply.headers,
            [("www-authenticate".to_owned(), "Bearer".to_owned())]
        );
    }
}

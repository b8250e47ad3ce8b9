//! What went wrong, as the API that was called is told.
//!
//! Messages are for the caller: what the engine says of the request goes through, what concerns this side alone (a
//! path, a trap) goes to the log.

use heddle_engine::Error as EngineError;

use crate::{
    error::Error,
    plugin::bindings::exports::heddle::plugin::{
        auth::Denial,
        protocol::{Payload, Problem, ProblemKind, Reply},
    },
};

fn problem(status: u16, kind: ProblemKind, message: impl Into<String>) -> Problem {
    Problem {
        status,
        kind,
        code: None,
        message: message.into(),
        parameter: None,
        retry_after: None,
    }
}

/// A field of the request is not valid.
pub(crate) fn invalid(parameter: &str, message: impl Into<String>) -> Problem {
    Problem {
        parameter: Some(parameter.to_owned()),
        ..problem(422, ProblemKind::InvalidRequest, message)
    }
}

/// There is no such model.
pub(crate) fn no_model(message: impl Into<String>) -> Problem {
    Problem {
        code: Some("model_not_found".to_owned()),
        parameter: Some("model".to_owned()),
        ..problem(404, ProblemKind::ModelNotFound, message)
    }
}

/// There is no such route.
pub(crate) fn no_route() -> Problem {
    problem(
        404,
        ProblemKind::UnknownRoute,
        "there is no such route on this server",
    )
}

/// The route has other methods.
pub(crate) fn wrong_method(methods: &[String]) -> Problem {
    problem(
        405,
        ProblemKind::UnknownRoute,
        format!("this route takes {}", methods.join(", ")),
    )
}

/// The body is larger than the limit.
pub(crate) fn too_large(limit: usize) -> Problem {
    problem(
        413,
        ProblemKind::TooLarge,
        format!("the body is larger than {limit} bytes, which is this server's limit"),
    )
}

/// The body did not come in time.
pub(crate) fn too_slow(seconds: u64) -> Problem {
    problem(
        408,
        ProblemKind::Timeout,
        format!("the body did not come within {seconds} s"),
    )
}

/// No plugin decides who may do what: nobody may.
pub(crate) fn no_auth() -> Problem {
    problem(
        503,
        ProblemKind::PluginFailed,
        "this server has no auth plugin, so it serves nobody",
    )
}

/// Stop sequences were asked for and nobody can find them.
pub(crate) fn no_stop() -> Problem {
    problem(
        503,
        ProblemKind::PluginFailed,
        "this server has no stop plugin, so it cannot serve requests with stop sequences",
    )
}

/// A plugin asked for what this host does not know.
pub(crate) fn unknown_call() -> Problem {
    problem(
        501,
        ProblemKind::Internal,
        "the plugin of this route asks for something that this server cannot do",
    )
}

/// The auth plugin said no.
pub(crate) fn denied(denial: Denial) -> Problem {
    let (status, kind) = match denial.status {
        401 => (401, ProblemKind::Unauthenticated),
        // Whatever it says, a denial stays one.
        _ => (403, ProblemKind::Forbidden),
    };
    Problem {
        code: Some(denial.code),
        ..problem(status, kind, denial.message)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let failed = |status, slot: &str| {
            tracing::error!("{error}");
            problem(
                status,
                ProblemKind::PluginFailed,
                format!("the plugin `{slot}` failed"),
            )
        };
        match &error {
            Error::PluginTrap { slot, .. } => failed(500, slot),
            Error::PluginOverdue { slot, .. } => failed(503, slot),
            Error::PluginBusy { .. } => Problem {
                retry_after: Some(1),
                ..problem(503, ProblemKind::Overloaded, error.to_string())
            },
            Error::Engine(error) => error.clone().into(),
            _ => internal(&error),
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match &error {
            EngineError::InvalidRequest { parameter, .. } => invalid(parameter, message),
            EngineError::ContextExceeded { .. } => Problem {
                code: Some("context_length_exceeded".to_owned()),
                ..problem(422, ProblemKind::InvalidRequest, message)
            },
            EngineError::Template(_) => problem(422, ProblemKind::Template, message),
            EngineError::InvalidSource { .. } => invalid("model", message),
            EngineError::Tokenize(_) => problem(422, ProblemKind::InvalidRequest, message),
            EngineError::Overloaded { retry_after, .. } => Problem {
                retry_after: Some(*retry_after),
                ..problem(429, ProblemKind::Overloaded, message)
            },
            EngineError::ShuttingDown => Problem {
                retry_after: Some(1),
                ..problem(503, ProblemKind::Overloaded, message)
            },
            EngineError::Generation(_) => problem(500, ProblemKind::GenerationFailed, message),
            EngineError::UnknownAdapter(_) | EngineError::Fetch { not_found: true, .. } => no_model(message),
            EngineError::Fetch { forbidden: true, .. } => Problem {
                parameter: Some("model".to_owned()),
                ..problem(403, ProblemKind::Forbidden, message)
            },
            EngineError::Fetch { .. } | EngineError::AdapterRefused { .. } => Problem {
                parameter: Some("model".to_owned()),
                ..problem(424, ProblemKind::AdapterUnavailable, message)
            },
            _ => internal(&error),
        }
    }
}

/// The engine's stream ended before its end.
pub(crate) fn ended_early() -> Problem {
    EngineError::Generation("the engine gave the request up".to_owned()).into()
}

/// A fault on this side: the caller learns that there was one, the log which.
fn internal(error: &dyn std::error::Error) -> Problem {
    tracing::error!("{error}");
    problem(
        500,
        ProblemKind::Internal,
        "something went wrong on the server's side; its log says more under this request's id",
    )
}

/// The host's own rendering, in OpenAI's shape with LoRAX's `error_type` beside it: for routes that are nobody's, and
/// where the plugin that should render has failed itself.
pub(crate) fn render(problem: &Problem) -> Reply {
    Reply {
        status: problem.status,
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        body: json(problem).into_bytes(),
    }
}

/// The same as the last event of a stream.
pub(crate) fn payload(problem: &Problem) -> Payload {
    Payload {
        name: None,
        data: json(problem),
    }
}

fn json(problem: &Problem) -> String {
    let (openai, lorax) = names(&problem.kind);
    serde_json::json!({
        "error": {
            "message": problem.message,
            "type": openai,
            "param": problem.parameter,
            "code": problem.code,
        },
        "error_type": lorax,
    })
    .to_string()
}

/// OpenAI's `type` and LoRAX's `error_type`.
fn names(kind: &ProblemKind) -> (&'static str, &'static str) {
    match kind {
        ProblemKind::InvalidRequest | ProblemKind::TooLarge | ProblemKind::Timeout => {
            ("invalid_request_error", "validation")
        }
        ProblemKind::Template => ("invalid_request_error", "template_error"),
        ProblemKind::UnknownRoute | ProblemKind::ModelNotFound => ("invalid_request_error", "not_found"),
        ProblemKind::Unauthenticated => ("authentication_error", "unauthenticated"),
        ProblemKind::Forbidden => ("permission_error", "forbidden"),
        ProblemKind::Overloaded => ("overloaded_error", "overloaded"),
        ProblemKind::AdapterUnavailable => ("server_error", "generation"),
        ProblemKind::GenerationFailed => ("server_error", "incomplete_generation"),
        ProblemKind::PluginFailed | ProblemKind::Internal | ProblemKind::Other(_) => {
            ("server_error", "internal")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_the_engine_has_its_status_and_kind() {
        let fetch = |not_found, forbidden| EngineError::Fetch {
            what: "org/a".into(),
            source_name: "the hub".into(),
            reason: "r".into(),
            not_found,
            forbidden,
        };
        let cases = [
            (
                EngineError::InvalidRequest {
                    parameter: "top_p",
                    message: "m".into(),
                },
                422,
                Some("top_p"),
                None,
            ),
            (
                EngineError::ContextExceeded {
                    context: 1,
                    prompt: 2,
                    wanted: 3,
                },
                422,
                None,
                Some("context_length_exceeded"),
            ),
            (
                EngineError::UnknownAdapter("a".into()),
                404,
                Some("model"),
                Some("model_not_found"),
            ),
            (fetch(true, false), 404, Some("model"), Some("model_not_found")),
            (fetch(false, true), 403, Some("model"), None),
            (fetch(false, false), 424, Some("model"), None),
            (EngineError::ShuttingDown, 503, None, None),
            (EngineError::Generation("g".into()), 500, None, None),
        ];
        for (error, status, parameter, code) in cases {
            let said = error.to_string();
            let problem = Problem::from(error);
            assert_eq!(
                (
                    problem.status,
                    problem.parameter.as_deref(),
                    problem.code.as_deref()
                ),
                (status, parameter, code),
                "{said}"
            );
            assert_eq!(problem.message, said);
        }
    }

    #[test]
    fn an_overloaded_engine_says_when_to_come_back() {
        let problem = Problem::from(EngineError::Overloaded {
            waiting: 9,
            retry_after: 4,
        });
        assert_eq!((problem.status, problem.retry_after), (429, Some(4)));
    }

    #[test]
    fn what_concerns_the_server_alone_stays_in_its_log() {
        let trap = Problem::from(Error::PluginTrap {
            slot: "openai".into(),
            call: "parse",
            reason: "unreachable at 0x1234".into(),
        });
        let file = Problem::from(EngineError::io(
            "/srv/secret",
            std::io::Error::from(std::io::ErrorKind::NotFound),
        ));
        for problem in [trap, file] {
            assert_eq!(problem.status, 500);
            assert!(
                !problem.message.contains("0x1234") && !problem.message.contains("/srv"),
                "{}",
                problem.message
            );
        }
    }

    #[test]
    fn a_denial_stays_a_denial_whatever_its_status() {
        for (said, answered) in [(401, 401), (403, 403), (200, 403), (0, 403), (500, 403)] {
            let problem = denied(Denial {
                status: said,
                code: "c".into(),
                message: "m".into(),
            });
            assert_eq!(problem.status, answered);
        }
    }
}

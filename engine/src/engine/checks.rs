//! What a request must be like. Every refusal names the parameter, what is expected of it and what it is.

use crate::{
    error::{Error, Result},
    ids::TokenId,
    request::{GenerateRequest, SamplingParams},
};

/// Choices of one request at most: OpenAI's limit.
pub(super) const MAX_CHOICES: u32 = 128;
/// Alternatives to a token at most.
pub(super) const MAX_TOP_LOGPROBS: u32 = 100;

/// What of the model a request is held against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'a> {
    pub(super) vocab: usize,
    /// Positions that one sequence may have: of the model's context, as many as the KV cache holds.
    pub(super) context: usize,
    pub(super) eos: &'a [TokenId],
}

fn invalid<T>(parameter: &'static str, message: impl Into<String>) -> Result<T> {
    Err(Error::InvalidRequest {
        parameter,
        message: message.into(),
    })
}

fn require(holds: bool, parameter: &'static str, message: impl FnOnce() -> String) -> Result<()> {
    if holds {
        Ok(())
    } else {
        invalid(parameter, message())
    }
}

/// The tokens that end a choice of this request.
pub(super) fn ending_tokens(request: &GenerateRequest, eos: &[TokenId]) -> Vec<TokenId> {
    let eos = if request.ignore_eos { &[] } else { eos };
    let mut tokens = [eos, &request.stop_tokens].concat();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// Checks everything but the prompt.
pub(super) fn check_parameters(request: &GenerateRequest, bounds: Bounds<'_>) -> Result<()> {
    check_sampling(&request.sampling, bounds.vocab)?;
    check_tokens("stop_tokens", &request.stop_tokens, bounds.vocab)?;
    let choices = request.choices;
    require((1..=MAX_CHOICES).contains(&choices), "choices", || {
        format!("must be between 1 and {MAX_CHOICES}; it is {choices}")
    })?;
    for (parameter, top) in [
        ("logprobs", request.logprobs),
        ("prompt_logprobs", request.prompt_logprobs),
    ] {
        let top = top.unwrap_or(0);
        require(top <= MAX_TOP_LOGPROBS, parameter, || {
            format!("must be at most {MAX_TOP_LOGPROBS}; it is {top}")
        })?;
    }
    require(request.truncate != Some(0), "truncate", || {
        "must be at least 1; it is 0".to_owned()
    })?;
    let min_tokens = request.min_tokens;
    if let Some(max_tokens) = request.max_tokens {
        require(min_tokens <= max_tokens, "min_tokens", || {
            format!("must be at most `max_tokens`, {max_tokens}; it is {min_tokens}")
        })?;
    }
    if let Some(allowed) = &request.sampling.allowed_tokens {
        let ending = if min_tokens > 0 {
            ending_tokens(request, bounds.eos)
        } else {
            Vec::new()
        };
        let usable =
            |token: &TokenId| !request.sampling.banned_tokens.contains(token) && !ending.contains(token);
        require(allowed.iter().any(usable), "allowed_tokens", || {
            "must name a token that is not banned, and with `min_tokens` one that does not end the text"
                .to_owned()
        })?;
    }
    Ok(())
}

fn check_sampling(sampling: &SamplingParams, vocab: usize) -> Result<()> {
    let number = |parameter, value: f32, holds: fn(f32) -> bool, range: &str| {
        require(holds(value), parameter, || {
            format!("must be {range}; it is {value}")
        })
    };
    number(
        "temperature",
        sampling.temperature,
        |t| t.is_finite() && t >= 0.0,
        "a finite number of at least 0",
    )?;
    number(
        "top_p",
        sampling.top_p,
        |p| p > 0.0 && p <= 1.0,
        "greater than 0 and at most 1",
    )?;
    number(
        "min_p",
        sampling.min_p,
        |p| (0.0..=1.0).contains(&p),
        "between 0 and 1",
    )?;
    number(
        "typical_p",
        sampling.typical_p,
        |p| p > 0.0 && p <= 1.0,
        "greater than 0 and at most 1",
    )?;
    let penalty = |p: f32| (-2.0..=2.0).contains(&p);
    number(
        "frequency_penalty",
        sampling.frequency_penalty,
        penalty,
        "between -2 and 2",
    )?;
    number(
        "presence_penalty",
        sampling.presence_penalty,
        penalty,
        "between -2 and 2",
    )?;
    let repetition = |p: f32| p.is_finite() && p > 0.0;
    number(
        "repetition_penalty",
        sampling.repetition_penalty,
        repetition,
        "a finite number greater than 0",
    )?;
    for (&token, &bias) in &sampling.logit_bias {
        check_tokens("logit_bias", &[token], vocab)?;
        number(
            "logit_bias",
            bias,
            f32::is_finite,
            "a finite number for each token",
        )?;
    }
    check_tokens("banned_tokens", &sampling.banned_tokens, vocab)?;
    check_tokens(
        "allowed_tokens",
        sampling.allowed_tokens.as_deref().unwrap_or(&[]),
        vocab,
    )
}

fn check_tokens(parameter: &'static str, tokens: &[TokenId], vocab: usize) -> Result<()> {
    match tokens.iter().find(|token| token.0 as usize >= vocab) {
        None => Ok(()),
        Some(token) => invalid(
            parameter,
            format!(
                "must name tokens below {vocab}, the size of the vocabulary; {} is not",
                token.0
            ),
        ),
    }
}

/// Checks a prompt, truncated already, and returns how many tokens each choice may get.
pub(super) fn check_prompt(prompt: &[TokenId], max_tokens: Option<u32>, bounds: Bounds<'_>) -> Result<usize> {
    require(!prompt.is_empty(), "prompt", || {
        "must have at least one token; it is empty".to_owned()
    })?;
    check_tokens("prompt", prompt, bounds.vocab)?;
    let room = bounds.context.checked_sub(prompt.len());
    let wanted = max_tokens.map_or(1, |tokens| tokens as usize);
    match room {
        Some(room) if wanted <= room => Ok(max_tokens.map_or(room, |tokens| tokens as usize)),
        _ => Err(Error::ContextExceeded {
            context: bounds.context,
            prompt: prompt.len(),
            wanted,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Prompt;

    const BOUNDS: Bounds<'_> = Bounds {
        vocab: 100,
        context: 50,
        eos: &[TokenId(2)],
    };

    fn refused(change: impl FnOnce(&mut GenerateRequest)) -> &'static str {
        let mut request = GenerateRequest::new(Prompt::Text(String::new()));
        change(&mut request);
        match check_parameters(&request, BOUNDS) {
            Ok(()) => "",
            Err(Error::InvalidRequest { parameter, .. }) => parameter,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_defaults_pass() {
        assert_eq!(refused(|_| ()), "");
    }

    #[test]
    fn numbers_are_held_to_their_ranges() {
        type Field = fn(&mut SamplingParams) -> &mut f32;
        let nan = f32::NAN;
        let cases: [(&str, Field, &[f32], &[f32]); 7] = [
            (
                "temperature",
                |s| &mut s.temperature,
                &[0.0, 2.0, 1e9],
                &[-0.1, nan, f32::INFINITY],
            ),
            ("top_p", |s| &mut s.top_p, &[1e-9, 1.0], &[0.0, 1.1, nan]),
            ("min_p", |s| &mut s.min_p, &[0.0, 1.0], &[-0.1, 1.1, nan]),
            ("typical_p", |s| &mut s.typical_p, &[0.1, 1.0], &[0.0, 1.1, nan]),
            (
                "repetition_penalty",
                |s| &mut s.repetition_penalty,
                &[0.1, 2.0],
                &[0.0, -1.0, nan, f32::INFINITY],
            ),
            (
                "frequency_penalty",
                |s| &mut s.frequency_penalty,
                &[-2.0, 2.0],
                &[-2.1, 2.1, nan],
            ),
            (
                "presence_penalty",
                |s| &mut s.presence_penalty,
                &[-2.0, 2.0],
                &[-2.1, 2.1, nan],
            ),
        ];
        for (name, field, good, bad) in cases {
            for &value in good {
                assert_eq!(
                    refused(|request| *field(&mut request.sampling) = value),
                    "",
                    "{name} {value}"
                );
            }
            for &value in bad {
                assert_eq!(
                    refused(|request| *field(&mut request.sampling) = value),
                    name,
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn tokens_are_in_the_vocabulary() {
        let out = || vec![TokenId(3), TokenId(100)];
        assert_eq!(refused(|r| r.stop_tokens = out()), "stop_tokens");
        assert_eq!(refused(|r| r.sampling.banned_tokens = out()), "banned_tokens");
        assert_eq!(
            refused(|r| r.sampling.allowed_tokens = Some(out())),
            "allowed_tokens"
        );
        assert_eq!(
            refused(|r| r.sampling.logit_bias = [(TokenId(100), 1.0)].into()),
            "logit_bias"
        );
        assert_eq!(
            refused(|r| r.sampling.logit_bias = [(TokenId(1), f32::NAN)].into()),
            "logit_bias"
        );
        assert_eq!(refused(|r| r.stop_tokens = vec![TokenId(99)]), "");
    }

    #[test]
    fn counts_are_held_to_their_limits() {
        assert_eq!(refused(|r| r.choices = 0), "choices");
        assert_eq!(refused(|r| r.choices = MAX_CHOICES + 1), "choices");
        assert_eq!(refused(|r| r.choices = MAX_CHOICES), "");
        assert_eq!(refused(|r| r.logprobs = Some(MAX_TOP_LOGPROBS + 1)), "logprobs");
        assert_eq!(
            refused(|r| r.prompt_logprobs = Some(MAX_TOP_LOGPROBS + 1)),
            "prompt_logprobs"
        );
        assert_eq!(refused(|r| r.truncate = Some(0)), "truncate");
        let limits =
            |min, max| move |r: &mut GenerateRequest| (r.min_tokens, r.max_tokens) = (min, Some(max));
        assert_eq!((refused(limits(5, 4)), refused(limits(4, 4))), ("min_tokens", ""));
    }

    #[test]
    fn a_token_is_left_to_choose() {
        let allow = |tokens: &[u32]| Some(tokens.iter().copied().map(TokenId).collect());
        assert_eq!(
            refused(|r| r.sampling.allowed_tokens = allow(&[])),
            "allowed_tokens"
        );
        assert_eq!(
            refused(|r| r.sampling.allowed_tokens = allow(&[2])),
            "",
            "the text ends at once"
        );
        let only_eos = |r: &mut GenerateRequest| {
            r.sampling.allowed_tokens = allow(&[2]);
            r.min_tokens = 1;
        };
        assert_eq!(refused(only_eos), "allowed_tokens");
        let ignored = |r: &mut GenerateRequest| {
            only_eos(r);
            r.ignore_eos = true;
        };
        assert_eq!(refused(ignored), "");
        let banned = |r: &mut GenerateRequest| {
            r.sampling.allowed_tokens = allow(&[5]);
            r.sampling.banned_tokens = vec![TokenId(5)];
        };
        assert_eq!(refused(banned), "allowed_tokens");
    }

    #[test]
    fn prompt_and_answer_fit_the_context() {
        let prompt = |len| vec![TokenId(1); len];
        let limit = |len, max| check_prompt(&prompt(len), max, BOUNDS);
        assert_eq!(limit(10, None).unwrap(), 40, "up to the end of the context");
        assert_eq!(limit(10, Some(40)).unwrap(), 40);
        assert_eq!(limit(50, Some(0)).unwrap(), 0);
        for (len, max, wanted) in [(10, Some(41), 41), (50, None, 1), (51, Some(0), 0)] {
            let Err(Error::ContextExceeded {
                context: 50,
                prompt,
                wanted: asked,
            }) = limit(len, max)
            else {
                panic!("{len} tokens and {max:?} more were taken");
            };
            assert_eq!((prompt, asked), (len, wanted));
        }
        assert!(matches!(
            limit(0, None),
            Err(Error::InvalidRequest {
                parameter: "prompt",
                ..
            })
        ));
        let foreign = check_prompt(&[TokenId(100)], None, BOUNDS);
        assert!(matches!(
            foreign,
            Err(Error::InvalidRequest {
                parameter: "prompt",
                ..
            })
        ));
    }
}

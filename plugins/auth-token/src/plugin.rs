//! What the host calls.

use heddle_plugin::{
    Auth, Credential, Decision, Denial, Descriptor, Grant, Identity, Plugin, RequestHead, SourceCredential,
    Target,
};

use crate::{
    config,
    policy::{Caller, Policy, Refusal, Wanted},
};

/// The component: its state is the configured policy.
pub struct AuthToken(Policy);

impl Plugin for AuthToken {
    fn describe() -> Descriptor {
        Descriptor {
            name: "auth-token".into(),
            version: heddle_plugin::version!(),
            description:
                "API tokens: open to all, or a table of hashed tokens with tenants, adapters and limits."
                    .into(),
            config_schema: Some(config::SCHEMA.into()),
        }
    }

    fn configure(config: &str) -> Result<Self, String> {
        config::parse(config).map(Self)
    }

    fn self_test(&self) -> Result<(), String> {
        self.0.self_test()
    }
}

impl Auth for AuthToken {
    fn authenticate(&self, _head: &RequestHead, credential: &Credential) -> Result<Decision, Denial> {
        match self.0.authenticate(&credential.digest()) {
            Ok(Caller::Known(token)) => Ok(Decision::Allow(Identity {
                subject: token.subject.clone(),
                tenant: token.tenant.clone(),
            })),
            Ok(Caller::Undecided) => Ok(Decision::Undecided),
            Err(refusal) => Err(denial(refusal)),
        }
    }

    fn authorize(&self, who: Option<Identity>, token: &Credential, target: &Target) -> Result<Grant, Denial> {
        let adapter = target.adapter();
        let wanted = match &adapter {
            _ if target.operation() == "models" => Wanted::Models,
            Some(name) => Wanted::Adapter(name),
            None => Wanted::Base,
        };
        let subject = who.as_ref().map(|who| who.subject.as_str());
        let allowed = self
            .0
            .authorize(subject, &token.digest(), wanted)
            .map_err(denial)?;
        let grant = Grant::new(allowed.tenant);
        if let Some(token) = allowed.token {
            grant.set_priority(token.priority);
            if let Some(count) = token.max_tokens {
                grant.set_max_tokens(count);
            }
            if let Some(count) = token.max_concurrent {
                grant.set_max_concurrent(count);
            }
        }
        if allowed.callers_credential {
            grant.set_source_credential(SourceCredential::Callers);
        }
        Ok(grant)
    }
}

fn denial(refusal: Refusal) -> Denial {
    let (status, code, message) = match refusal {
        Refusal::Missing => (
            401,
            "invalid_api_key",
            "No API key was given: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`, or as `api_token` in \
             the body."
                .to_owned(),
        ),
        Refusal::Unknown => (
            401,
            "invalid_api_key",
            "The API key is not known here: check it, or ask whoever runs this server for one.".to_owned(),
        ),
        Refusal::Adapter(name) => (
            403,
            "adapter_not_allowed",
            format!("This API key may not use the adapter `{name}`: whoever runs this server can allow it."),
        ),
        Refusal::Base => (
            403,
            "model_not_allowed",
            "This API key may not use the base model, only adapters: name one as `model`.".to_owned(),
        ),
    };
    Denial {
        status,
        code: code.into(),
        message,
    }
}

heddle_plugin::export!(AuthToken: auth);

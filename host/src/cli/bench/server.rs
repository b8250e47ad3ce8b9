//! A server that is to be measured.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{
    Client, Url,
    header::{AUTHORIZATION, HeaderMap},
    redirect::Policy,
};
use serde::Deserialize;

use super::{
    args::Args,
    request::{Failure, cause},
};

/// How long it may take to reach a server.
const CONNECT: Duration = Duration::from_secs(10);

/// The model to ask for where a server does not tell its models.
const NO_MODEL: &str = "base";

/// A server that answers.
pub(super) struct Server {
    pub(super) client: Client,
    /// As it is shown: without a user's name and password.
    pub(super) address: String,
    /// Where completions are asked for.
    pub(super) completions: Url,
    /// What is asked for where there are no adapters.
    pub(super) model: String,
}

/// The answer to `GET /v1/models`, as far as it is of use.
#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    id: String,
}

impl Server {
    /// Asks a server for its models.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses the key.
    pub(super) async fn connect(url: &Url, args: &Args) -> anyhow::Result<Self> {
        let address = url.origin().ascii_serialization() + url.path().trim_end_matches('/');
        let client = client(args).context("the HTTP client could not be made")?;
        let models = below(url, "v1/models");
        let answer = match client.get(models).timeout(CONNECT).send().await {
            Ok(answer) => answer,
            Err(error) => bail!(
                "no server answers at {address} ({}): start one (`heddle serve`), or check the address",
                cause(&error)
            ),
        };
        if matches!(answer.status().as_u16(), 401 | 403) {
            let failure = Failure::refused(answer).await;
            bail!("{address} wants another key ({failure}): give it with --api-key");
        }
        let first = match &args.model {
            Some(model) => Some(model.clone()),
            None => answer
                .json::<Models>()
                .await
                .ok()
                .and_then(|models| models.data.into_iter().next())
                .map(|model| model.id),
        };
        Ok(Self {
            client,
            address,
            completions: below(url, "v1/completions"),
            model: first.unwrap_or_else(|| NO_MODEL.to_owned()),
        })
    }
}

fn client(args: &Args) -> reqwest::Result<Client> {
    let mut headers = HeaderMap::new();
    if let Some(authorization) = &args.authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    Client::builder()
        .user_agent(concat!("heddle/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .connect_timeout(CONNECT)
        .timeout(args.timeout())
        // What stands between would be measured, too.
        .no_proxy()
        .redirect(Policy::none())
        // A connection for each request: none fails because the server has just closed an idle one.
        .pool_max_idle_per_host(0)
        .build()
}

/// An address below another.
fn below(url: &Url, path: &str) -> Url {
    let mut below = url.clone();
    below.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
    below
}

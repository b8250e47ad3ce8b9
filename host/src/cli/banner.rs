//! What a person sees when the server is up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use indicatif::HumanBytes;

use super::base_model::{self, BaseModel};
use crate::{
    app::App,
    config::{Config, LogFormat},
};

/// Adapters that are named; of more only the number is told.
const ADAPTERS_SHOWN: usize = 12;

/// Everything that the banner tells.
pub(super) struct Banner<'a> {
    pub(super) app: &'a App,
    pub(super) base: &'a BaseModel,
    pub(super) config: &'a Config,
    pub(super) listening: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
}

impl Banner<'_> {
    /// Shows it on standard output, or as a line of the log where the log is for machines.
    pub(super) fn show(&self) {
        if self.config.log.format == LogFormat::Json {
            tracing::info!(
                address = %self.listening,
                model = self.app.model.name,
                device = self.base.device,
                "listening"
            );
        } else {
            println!("{}", self.text());
        }
    }

    fn text(&self) -> String {
        let model = &self.app.model.name;
        let mut lines = vec![format!("heddle {} serves {model}", env!("CARGO_PKG_VERSION"))];
        let mut line = |name: &str, value: String| lines.push(format!("  {name:<10} {value}"));

        let size = HumanBytes(base_model::size(&self.base.files));
        let description = self.base.description.unwrap_or("weights");
        line("model", format!("{description} ({size})"));
        let health = self.app.engine.health();
        line(
            "device",
            format!(
                "{}, KV cache of {} tokens in {} MiB",
                self.base.device,
                health.kv_blocks * heddle_engine::ids::BLOCK_TOKENS,
                self.config.model.kv_cache_mib
            ),
        );
        line("adapters", self.adapters());
        let pipeline = self.app.plugins.pin();
        for plugin in pipeline.plugins() {
            line(
                "plugin",
                format!(
                    "{} = {} {} ({})",
                    plugin.slot(),
                    plugin.name(),
                    plugin.version(),
                    plugin.digest().get(..12).unwrap_or_default()
                ),
            );
        }
        let admin = self
            .admin
            .map_or("off".to_owned(), |admin| format!("http://{admin}"));
        line("admin", admin);
        line("listening", format!("http://{}", reachable(self.listening)));
        lines.push(String::new());
        lines.push(self.curl());
        lines.join("\n")
    }

    fn adapters(&self) -> String {
        let mut names: Vec<String> = (self.app.engine.adapters().list().into_iter())
            .map(|adapter| adapter.name)
            .collect();
        if names.is_empty() {
            return "none yet".to_owned();
        }
        let more = names.len().saturating_sub(ADAPTERS_SHOWN);
        names.truncate(ADAPTERS_SHOWN);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        names.join(", ") + &more
    }

    fn curl(&self) -> String {
        // A configured auth plugin most likely wants to see a token.
        let auth = self.config.plugins.slots.get("auth");
        let token = if auth.is_some_and(|slot| slot.component.is_some() || !slot.config.is_empty()) {
            " -H \"authorization: Bearer $TOKEN\""
        } else {
            ""
        };
        format!(
            "  curl http://{}/v1/chat/completions -H 'content-type: application/json'{token} \\\n    \
             -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]}}'\n",
            reachable(self.listening),
            self.app.model.name
        )
    }
}

/// The address to reach the server at from this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

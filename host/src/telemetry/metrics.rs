//! The metrics, in the text format of Prometheus (OpenMetrics 1.0).

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::error::Result;

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    /// A route as a plugin or the host declares it; `unmatched` where there is none.
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    slot: String,
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    slot: String,
    call: &'static str,
    outcome: &'static str,
}

/// What is read off the engine and the plugins when the metrics are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Gauges {
    /// The engine's.
    pub engine: heddle_engine::engine::Health,
    /// Adapters with a name.
    pub adapters_registered: usize,
    /// Adapters on the device.
    pub adapters_resident: usize,
    /// The pipeline's generation.
    pub pipeline: u64,
}

/// All metrics of the server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    cancelled: Counter,
    time_to_first_token: Histogram,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    cached_tokens: Counter,
    calls: Family<OutcomeLabels, Counter>,
    call_seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    gauges: EngineGauges,
}

#[derive(Debug, Default)]
struct EngineGauges {
    up: Gauge,
    running: Gauge,
    waiting: Gauge,
    kv_used: Gauge,
    kv_blocks: Gauge,
    kv_share: Gauge<f64, AtomicU64>,
    adapters_registered: Gauge,
    adapters_resident: Gauge,
    pipeline: Gauge,
}

/// 1 ms to about 2 minutes.
fn request_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

/// 1 us to about 65 ms.
fn call_seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-6, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let heddle = registry.sub_registry_with_prefix("heddle");

        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                heddle.register($name, $help, metric.clone());
                metric
            }};
        }
        let requests = register!(
            "requests",
            "Requests answered, by route and status (499: the client went away first)",
            Family::default()
        );
        let durations = register!(
            "request_duration_seconds",
            "From a request's head to the last byte of its answer",
            Family::new_with_constructor(request_seconds as fn() -> Histogram)
        );
        let in_flight = register!("requests_in_flight", "Requests being answered", Gauge::default());
        let cancelled = register!(
            "requests_cancelled",
            "Requests whose client went away",
            Counter::default()
        );
        let time_to_first_token = register!(
            "time_to_first_token_seconds",
            "From a request's head to its first token",
            request_seconds()
        );
        let prompt_tokens = register!("prompt_tokens", "Tokens of prompts", Counter::default());
        let generated_tokens = register!("generated_tokens", "Tokens generated", Counter::default());
        let cached_tokens = register!(
            "cached_tokens",
            "Prompt tokens whose keys and values came from the prefix cache",
            Counter::default()
        );
        let calls = register!(
            "plugin_calls",
            "Calls into plugins, by outcome",
            Family::default()
        );
        let call_seconds = register!(
            "plugin_call_seconds",
            "Time of one call into a plugin",
            Family::new_with_constructor(call_seconds as fn() -> Histogram)
        );
        let gauges = EngineGauges {
            up: register!(
                "engine_up",
                "1 while the engine's step loop is alive",
                Gauge::default()
            ),
            running: register!("sequences_running", "Sequences that run", Gauge::default()),
            waiting: register!(
                "requests_waiting",
                "Requests in the engine's queue",
                Gauge::default()
            ),
            kv_used: register!(
                "kv_blocks_used",
                "Blocks of the KV cache in use",
                Gauge::default()
            ),
            kv_blocks: register!("kv_blocks", "Blocks of the KV cache", Gauge::default()),
            kv_share: Gauge::default(),
            adapters_registered: register!("adapters_registered", "Adapters with a name", Gauge::default()),
            adapters_resident: register!(
                "adapters_resident",
                "Named adapters on the device",
                Gauge::default()
            ),
            pipeline: register!(
                "pipeline_generation",
                "The generation of the plugin pipeline that new requests get",
                Gauge::default()
            ),
        };
        // The names that the Kubernetes inference gateway's endpoint picker reads.
        registry.register(
            "vllm:num_requests_running",
            "Sequences that run",
            gauges.running.clone(),
        );
        registry.register(
            "vllm:num_requests_waiting",
            "Requests that wait",
            gauges.waiting.clone(),
        );
        registry.register(
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, 0 to 1",
            gauges.kv_share.clone(),
        );
        Self {
            registry,
            requests,
            durations,
            in_flight,
            cancelled,
            time_to_first_token,
            prompt_tokens,
            generated_tokens,
            cached_tokens,
            calls,
            call_seconds,
            gauges,
        }
    }
}

impl Metrics {
    /// A request begins.
    pub(super) fn begin(&self) {
        self.in_flight.inc();
    }

    /// A request ended.
    pub(super) fn end(&self, route: &str, status: u16, cancelled: bool, duration: Duration) {
        self.in_flight.dec();
        if cancelled {
            self.cancelled.inc();
        }
        let route = route.to_owned();
        self.requests
            .get_or_create(&RequestLabels {
                route: route.clone(),
                status,
            })
            .inc();
        self.durations
            .get_or_create(&RouteLabels { route })
            .observe(duration.as_secs_f64());
    }

    /// The first token of a request came.
    pub(super) fn first_token(&self, after: Duration) {
        self.time_to_first_token.observe(after.as_secs_f64());
    }

    /// So many tokens more.
    pub(super) fn tokens(&self, prompt: u64, generated: u64, cached: u64) {
        self.prompt_tokens.inc_by(prompt);
        self.generated_tokens.inc_by(generated);
        self.cached_tokens.inc_by(cached);
    }

    /// The meter of one call into the plugin of a slot.
    pub fn call(&self, slot: &str, call: &'static str) -> CallMeter {
        let outcome = |outcome| {
            self.calls.get_or_create_owned(&OutcomeLabels {
                slot: slot.to_owned(),
                call,
                outcome,
            })
        };
        CallMeter {
            done: outcome("ok"),
            failed: outcome("failed"),
            seconds: self.call_seconds.get_or_create_owned(&CallLabels {
                slot: slot.to_owned(),
                call,
            }),
        }
    }

    /// Everything as text.
    pub fn render(&self, now: &Gauges) -> String {
        let gauges = &self.gauges;
        let set = |gauge: &Gauge, value: usize| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(&gauges.up, usize::from(now.engine.alive));
        set(&gauges.running, now.engine.running);
        set(&gauges.waiting, now.engine.waiting);
        set(&gauges.kv_used, now.engine.kv_used);
        set(&gauges.kv_blocks, now.engine.kv_blocks);
        (gauges.kv_share).set(now.engine.kv_used as f64 / now.engine.kv_blocks.max(1) as f64);
        set(&gauges.adapters_registered, now.adapters_registered);
        set(&gauges.adapters_resident, now.adapters_resident);
        gauges
            .pipeline
            .set(i64::try_from(now.pipeline).unwrap_or(i64::MAX));
        let mut page = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

/// Counts and times one kind of call into a plugin.
#[derive(Debug, Clone)]
pub struct CallMeter {
    done: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl CallMeter {
    /// Runs the call.
    pub fn measure<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = call();
        self.seconds.observe(start.elapsed().as_secs_f64());
        if result.is_ok() {
            self.done.inc();
        } else {
            self.failed.inc();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use heddle_engine::engine::Health;

    use super::*;

    #[test]
    fn a_page_holds_what_was_counted() {
        let metrics = Metrics::default();
        metrics.begin();
        metrics.end("/v1/completions", 200, false, Duration::from_millis(3));
        metrics.tokens(5, 7, 2);
        let refused = metrics
            .call("openai", "parse")
            .measure(|| -> Result<()> { Err(crate::Error::Config(String::new())) });
        assert!(refused.is_err());
        let page = metrics.render(&Gauges {
            engine: Health {
                alive: true,
                accepting: true,
                running: 3,
                waiting: 4,
                kv_used: 1,
                kv_blocks: 4,
            },
            adapters_registered: 2,
            adapters_resident: 1,
            pipeline: 9,
        });
        for line in [
            "heddle_requests_total{route=\"/v1/completions\",status=\"200\"} 1",
            "heddle_requests_in_flight 0",
            "heddle_generated_tokens_total 7",
            "heddle_plugin_calls_total{slot=\"openai\",call=\"parse\",outcome=\"failed\"} 1",
            "heddle_sequences_running 3",
            "vllm:num_requests_waiting 4",
            "vllm:kv_cache_usage_perc 0.25",
            "heddle_pipeline_generation 9",
        ] {
            assert!(page.lines().any(|found| found == line), "`{line}` in:\n{page}");
        }
        assert!(page.ends_with("# EOF\n"), "OpenMetrics ends with its end mark");
    }
}

//! The contract in Rust, made from `wit/`. Records are wasmtime's; resources are the structs of [`super::resources`].
#![allow(
    missing_docs,
    reason = "generated: what the contract documents is documented, the rest is the generator's"
)]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "plugin",
    with: {
        "heddle:plugin/http.request-head": super::resources::RequestHead,
        "heddle:plugin/http.credential": super::resources::Credential,
        "heddle:plugin/generation.request": super::resources::GenerationCall,
        "heddle:plugin/generation.served": super::resources::Served,
        "heddle:plugin/access.target": super::resources::Target,
        "heddle:plugin/access.grant": super::resources::Grant,
    },
    imports: { default: trappable },
});

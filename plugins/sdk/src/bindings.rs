//! What `wit-bindgen` makes of `wit/`: one module for what a plugin imports, one for each interface that it may export.
//!
//! One world for each exported interface, so that a component exports what its `export!` names and nothing else;
//! `wit-component` merges the worlds of the roles that meet in one component. What they import is generated once and
//! shared.
#![allow(missing_docs, reason = "the documentation is in the WIT files")]
#![allow(clippy::all, reason = "generated")]

/// What any plugin may import.
pub mod imports {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package heddle:sdk;
            world imports {
                import heddle:plugin/log@0.1.0;
                import heddle:plugin/clock@0.1.0;
                import heddle:plugin/random@0.1.0;
                import heddle:plugin/http@0.1.0;
                import heddle:plugin/access@0.1.0;
                import heddle:plugin/generation@0.1.0;
            }
        ",
        generate_all,
        additional_derives: [PartialEq],
    });
}

/// `lifecycle`, exported by every plugin.
pub mod lifecycle {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package heddle:sdk;
            world lifecycle-role {
                export heddle:plugin/lifecycle@0.1.0;
            }
        ",
        generate_all,
        pub_export_macro: true,
    });
}

/// `auth`.
pub mod auth {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package heddle:sdk;
            world auth-role {
                export heddle:plugin/auth@0.1.0;
            }
        ",
        with: {
            "heddle:plugin/http@0.1.0": crate::bindings::imports::heddle::plugin::http,
            "heddle:plugin/access@0.1.0": crate::bindings::imports::heddle::plugin::access,
        },
        generate_all,
        pub_export_macro: true,
        additional_derives: [PartialEq],
    });
}

/// `protocol`.
pub mod protocol {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package heddle:sdk;
            world protocol-role {
                export heddle:plugin/protocol@0.1.0;
            }
        ",
        with: {
            "heddle:plugin/http@0.1.0": crate::bindings::imports::heddle::plugin::http,
            "heddle:plugin/generation@0.1.0": crate::bindings::imports::heddle::plugin::generation,
        },
        generate_all,
        pub_export_macro: true,
        additional_derives: [PartialEq],
        additional_derives_ignore: ["call"],
    });
}

/// `stop`.
pub mod stop {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package heddle:sdk;
            world stop-role {
                export heddle:plugin/stop@0.1.0;
            }
        ",
        generate_all,
        pub_export_macro: true,
        additional_derives: [PartialEq],
    });
}

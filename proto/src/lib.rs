//! The gRPC contract of xrayd: messages, client and server of `xrayd.v1`, and the descriptor set
//! for reflection.
//!
//! `src/generated/` is committed output of `cargo xtask gen-proto` from
//! `proto/xrayd/v1/xrayd.proto`. So a user's machine needs no `protoc`.
//! `cargo xtask gen-proto --check` fails if the output is not current.
//!
//! Messages that `xrayctl --json` prints as they are can be serialised. `xtask` has the list of
//! them.

#![forbid(unsafe_code)]

mod names;

pub use names::Named;

/// Version 1 of the contract.
pub mod v1 {
    #![expect(
        missing_docs,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        reason = "generated; the contract is documented in the .proto file"
    )]

    include!("generated/xrayd.v1.rs");
}

/// The contract and everything that it imports, as an encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/xrayd.v1.bin");

/// The metadata key of a failed call that carries the reason id, for example `foreign-tracer`.
pub const REASON_KEY: &str = "xrayd-reason";

/// The largest message of an answer, in bytes.
///
/// The largest answer is the list of a host's processes. The limit on requests is lower.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

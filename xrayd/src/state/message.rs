//! The record of a session as protobuf messages. The messages of settings and selections are those
//! of the gRPC contract. A field that a later version adds is skipped by an earlier one.

use prost::Message;
use xrayd_proto::v1;

/// A session. Numbers are as in [`crate::process::SessionRecord`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Session {
    #[prost(uint32, tag = "1")]
    pub(super) pid: u32,
    #[prost(uint64, tag = "2")]
    pub(super) start_time: u64,
    #[prost(message, optional, tag = "4")]
    pub(super) caller: Option<Caller>,
    #[prost(uint64, tag = "5")]
    pub(super) ring_bytes: u64,
    #[prost(uint32, tag = "6")]
    pub(super) max_threads: u32,
    #[prost(bool, tag = "7")]
    pub(super) await_sleds: bool,
    #[prost(message, optional, tag = "8")]
    pub(super) group: Option<Group>,
    #[prost(message, optional, tag = "9")]
    pub(super) settings: Option<v1::Settings>,
    /// The oldest first.
    #[prost(message, repeated, tag = "10")]
    pub(super) rules: Vec<Rule>,
    #[prost(message, repeated, tag = "11")]
    pub(super) modules: Vec<Module>,
    #[prost(uint64, tag = "12")]
    pub(super) session: u64,
    #[prost(bool, tag = "13")]
    pub(super) has_ended: bool,
    #[prost(message, optional, tag = "14")]
    pub(super) credentials: Option<Credentials>,
    #[prost(bool, tag = "15")]
    pub(super) by_policy: bool,
}

/// A policy, as in [`crate::policies::KeptPolicy`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Policy {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) text: String,
    #[prost(uint64, optional, tag = "3")]
    pub(super) expires: Option<u64>,
    /// Unset: a client has applied it.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(super) path: Option<Vec<u8>>,
    #[prost(uint64, tag = "5")]
    pub(super) since: u64,
}

/// The credentials of the process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Credentials {
    #[prost(uint32, tag = "1")]
    pub(super) user: u32,
    /// Unset if real, effective and saved ids of the threads differ.
    #[prost(message, optional, tag = "2")]
    pub(super) ids: Option<Ids>,
    #[prost(uint64, tag = "3")]
    pub(super) permitted: u64,
    /// The user namespace. Unset: another one, or one that cannot be read.
    #[prost(message, optional, tag = "4")]
    pub(super) namespace: Option<Namespace>,
    #[prost(bool, tag = "5")]
    pub(super) dumpable: bool,
}

/// The user and the group of all threads.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ids {
    #[prost(uint32, tag = "1")]
    pub(super) user: u32,
    #[prost(uint32, tag = "2")]
    pub(super) group: u32,
}

/// A user namespace, as seen from the daemon's own.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Namespace {
    /// The user who made the outermost namespace between the daemon's own and this one. Unset: the
    /// daemon's own.
    #[prost(uint32, optional, tag = "1")]
    pub(super) owner: Option<u32>,
}

/// A client of the daemon, with the rights that it had.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Caller {
    #[prost(uint32, tag = "1")]
    pub(super) uid: u32,
    #[prost(uint32, tag = "2")]
    pub(super) pid: u32,
    #[prost(uint32, tag = "3")]
    pub(super) group: u32,
    #[prost(uint64, tag = "4")]
    pub(super) permitted: u64,
    #[prost(uint64, tag = "5")]
    pub(super) effective: u64,
    #[prost(uint64, tag = "6")]
    pub(super) start_time: u64,
    /// The user whose processes a rule of access gave the caller rights to.
    #[prost(uint32, optional, tag = "7")]
    pub(super) acts_for: Option<u32>,
}

/// The place of a session in its group.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Group {
    #[prost(uint32, tag = "1")]
    pub(super) root: u32,
    #[prost(uint64, tag = "2")]
    pub(super) root_start_time: u64,
    #[prost(enumeration = "v1::Follow", tag = "3")]
    pub(super) follow: i32,
    #[prost(message, optional, tag = "4")]
    pub(super) caller: Option<Caller>,
    /// Unset for the first process.
    #[prost(message, optional, tag = "5")]
    pub(super) kinship: Option<v1::Kinship>,
}

/// A selection that holds for libraries that are loaded later.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Rule {
    #[prost(message, optional, tag = "1")]
    pub(super) selection: Option<v1::Selection>,
    /// The values to record. Unset: the functions are off.
    #[prost(message, optional, tag = "2")]
    pub(super) on: Option<v1::Capture>,
    /// The number of the policy whose lease this is. 0: the rule is permanent.
    #[prost(uint64, tag = "3")]
    pub(super) policy: u64,
}

/// The functions of a module that are on.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Module {
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(uint64, tag = "2")]
    pub(super) bias: u64,
    #[prost(uint32, tag = "3")]
    pub(super) functions: u32,
    #[prost(message, repeated, tag = "4")]
    pub(super) on: Vec<On>,
}

/// Functions of a module of which the same is recorded.
#[derive(Clone, PartialEq, Message)]
pub(super) struct On {
    #[prost(message, optional, tag = "1")]
    pub(super) capture: Option<v1::Capture>,
    /// Ranges of indexes: the distance from the end of the range before, then the length.
    #[prost(uint32, repeated, tag = "2")]
    pub(super) ranges: Vec<u32>,
}

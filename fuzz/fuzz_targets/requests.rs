//! Requests of clients: the daemon decodes any bytes as each message, and converts the message up
//! to the point where it would look at a process.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use xrayd::{rpc::fuzzing, types::Switch};
use xrayd_proto::v1;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind % 7 {
        0 => with(bytes, |request| fuzzing::toggle(request, Switch::On)),
        1 => with(bytes, |request| fuzzing::toggle(request, Switch::Off)),
        2 => with(bytes, |request: v1::ListFunctionsRequest| {
            fuzzing::select(request.selection, None);
        }),
        3 => with(bytes, |request: v1::StreamTraceRequest| {
            fuzzing::select(request.selection, request.undo);
        }),
        4 => with(bytes, fuzzing::settings),
        5 => with(bytes, fuzzing::attach),
        _ => with(bytes, fuzzing::trigger),
    }
});

fn with<M: Message + Default>(bytes: &[u8], read: impl FnOnce(M)) {
    if let Ok(message) = M::decode(bytes) {
        read(message);
    }
}

//! The message of a caught panic.

use std::any::Any;

/// The message of a panic. The payload of `panic!` is one of two types of text.
pub(crate) fn message_of(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

//! The daemon's metrics server. A client sends the input over a connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xrayd::metrics::fuzzing::ask;

fuzz_target!(|input: &[u8]| {
    let answer = ask(input);
    let has = |text: &[u8], what: &str| {
        let mut windows = text.windows(what.len());
        windows.any(|window| window.eq_ignore_ascii_case(what.as_bytes()))
    };
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    if answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200") {
        assert!(has(input, "/metrics"));
    } else {
        assert!(!has(&answer, "xrayd_"), "a page that was not asked for");
    }
    assert!(!has(&answer, "a bug in xrayd"));
    // A stranger's host name may resolve to this address. Such a request gets no metrics. Here that
    // name is the only `host` of the input, in the head of the first request.
    let at = input.windows(12).position(|it| it == b"\nhost: evil\r");
    if let Some(at) = at
        && !has(&input[..at + 1], "\n\n")
        && !has(&input[..at + 1], "\n\r\n")
        && !has(&input[..at], "host")
        && !has(&input[at + 5..], "host")
    {
        assert!(!has(&answer, "xrayd_"), "told to a stranger's page");
    }
});

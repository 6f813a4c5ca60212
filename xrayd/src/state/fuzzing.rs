//! Entry point for a fuzz target: records of sessions in files. It exists only with
//! `--cfg fuzzing`.

use prost::Message as _;

use super::{convert, message};

/// Reads a record behind its checksum, and writes it again. A record that is read twice is the
/// same.
pub fn read_record(bytes: &[u8]) {
    let Ok(message) = message::Session::decode(bytes) else {
        return;
    };
    let Ok(record) = convert::record(message) else {
        return;
    };
    let again = convert::record(convert::session(&record));
    assert!(again.is_ok_and(|again| again == record));
}

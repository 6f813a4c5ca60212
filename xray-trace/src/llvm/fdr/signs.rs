//! The signs of an event and of a buffer in arbitrary bytes, for reading on behind damage.

use std::io::Read;

use super::record::{FUNCTION_LEN, METADATA_LEN};
use super::{BitOrder, FunctionKind, Kind};
use crate::llvm::window::Window;
use crate::llvm::{ByteOrder, Error};

/// Skips to the next place that looks like the begin of a buffer, excluding this one, or to the
/// end of the file.
pub(super) fn find_buffer<R: Read>(
    window: &mut Window<R>,
    bits: BitOrder,
    version: u16,
) -> Result<(), Error> {
    const LEN: usize = 3 * METADATA_LEN;
    window.skip(1)?;
    loop {
        let ahead = window.ahead(LEN)?;
        let len = ahead.len();
        let found = ahead
            .windows(LEN)
            .position(|bytes| looks_like_buffer(bits, version, bytes));
        match found {
            Some(at) => window.take(at),
            None if len < LEN => window.take(len),
            None => {
                window.take(len + 1 - LEN);
                continue;
            }
        };
        return Ok(());
    }
}

/// Whether the bytes can be an event of the previous buffer. Function ids begin at 1; zeros are
/// padding.
pub(super) fn looks_like_event(order: ByteOrder, bits: BitOrder, bytes: &[u8]) -> bool {
    let Some(first) = bytes.first().filter(|_| bytes.len() >= FUNCTION_LEN) else {
        return false;
    };
    match bits.metadata(*first) {
        None => {
            let (kind, function) = bits.function(order.u32(bytes, 0));
            function != 0 && FunctionKind::from_number(kind).is_some()
        }
        Some(number) => matches!(
            Kind::from_number(number),
            Some(
                Kind::NewCpuId
                    | Kind::TscWrap
                    | Kind::CallArg
                    | Kind::CustomEvent
                    | Kind::TypedEvent
            )
        ),
    }
}

/// Whether the bytes can be a buffer's first three records. A function record can look like one of
/// them, but three do not.
pub(super) fn looks_like_buffer(bits: BitOrder, version: u16, bytes: &[u8]) -> bool {
    let kind = |at: usize| {
        let first = bytes.get(at).copied().unwrap_or_default();
        bits.metadata(first).and_then(Kind::from_number)
    };
    let start = [kind(0), kind(METADATA_LEN), kind(2 * METADATA_LEN)];
    let extents = [
        Some(Kind::BufferExtents),
        Some(Kind::NewBuffer),
        Some(Kind::WallClockTime),
    ];
    let bare = [
        Some(Kind::NewBuffer),
        Some(Kind::WallClockTime),
        Some(Kind::NewCpuId),
    ];
    (version >= 2 && start == extents) || (version <= 2 && start == bare)
}

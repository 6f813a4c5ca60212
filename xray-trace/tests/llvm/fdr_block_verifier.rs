//! FDRBlockVerifierTest: the order of a buffer's records.

use xray_trace::llvm::fdr::Kind::{self, *};
use xray_trace::llvm::fdr::verify::{State, Verifier};

/// Steps through records; `Err` has the first one that is not allowed.
fn steps(kinds: &[Kind]) -> Result<Verifier, String> {
    let mut verifier = Verifier::default();
    for kind in kinds {
        verifier.step(*kind).map_err(|why| why.to_string())?;
    }
    Ok(verifier)
}

const V3: [Kind; 7] = [
    BufferExtents,
    NewBuffer,
    WallClockTime,
    PidEntry,
    NewCpuId,
    Function,
    Function,
];

#[test]
fn valid_blocks_v3() {
    let mut verifier = Verifier::default();
    for _ in 0..3 {
        for kind in V3 {
            verifier.step(kind).unwrap();
        }
        verifier.finish().unwrap();
    }
}

#[test]
fn missing_pid_record() {
    steps(&[BufferExtents, NewBuffer, WallClockTime, NewCpuId, Function])
        .and_then(|mut verifier| verifier.finish().map_err(|end| end.to_string()))
        .unwrap();
}

#[test]
fn missing_buffer_extents() {
    steps(&[NewBuffer, WallClockTime, NewCpuId, Function, Function])
        .and_then(|mut verifier| verifier.finish().map_err(|end| end.to_string()))
        .unwrap();
}

#[test]
fn ignore_records_after_eob() {
    let mut verifier = steps(&[
        NewBuffer,
        WallClockTime,
        NewCpuId,
        EndOfBuffer,
        Function,
        Function,
    ])
    .unwrap();
    assert_eq!(verifier.state(), State::After(EndOfBuffer));
    verifier.finish().unwrap();
}

#[test]
fn malformed_v2() {
    let error = steps(&[
        NewBuffer,
        WallClockTime,
        NewCpuId,
        Function,
        Function,
        NewBuffer,
    ]);
    assert_eq!(
        error.unwrap_err(),
        "invalid transition from Function to NewBuffer"
    );
}

#[test]
fn every_transition_is_the_one_of_the_table() {
    let all = [
        BufferExtents,
        NewBuffer,
        WallClockTime,
        PidEntry,
        NewCpuId,
        TscWrap,
        CustomEvent,
        Function,
        CallArg,
        EndOfBuffer,
        TypedEvent,
    ];
    // From `BlockVerifier.cpp`, in the order above.
    let table = [
        (vec![], "yy........."),
        (vec![BufferExtents], ".y........."),
        (vec![NewBuffer], "..y........"),
        (vec![NewBuffer, WallClockTime], "...yy......"),
        (vec![NewBuffer, WallClockTime, PidEntry], "....y......"),
        (vec![NewCpuId], "....yyyy.yy"),
        (vec![NewCpuId, TscWrap], "....yyyy.yy"),
        (vec![NewCpuId, CustomEvent], "....yyyy.yy"),
        (vec![NewCpuId, TypedEvent], "....yyyy.yy"),
        (vec![NewCpuId, Function], "....yyyyyyy"),
        (vec![NewCpuId, Function, CallArg], "....yyyyyyy"),
        (vec![NewCpuId, EndOfBuffer], "y.yyyyyyyyy"),
    ];
    for (path, row) in table {
        let start: &[Kind] = if path.first() == Some(&NewCpuId) {
            &[NewBuffer, WallClockTime]
        } else {
            &[]
        };
        for (to, allowed) in all.iter().zip(row.chars()) {
            let kinds = [start, &path, &[*to]].concat();
            assert_eq!(steps(&kinds).is_ok(), allowed == 'y', "{kinds:?}");
        }
        let mut verifier = steps(&[start, &path].concat()).unwrap();
        let last = path.last();
        let terminal = start.len() == 2;
        assert_eq!(verifier.finish().is_ok(), terminal, "{last:?}");
    }
}

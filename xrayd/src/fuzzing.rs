//! Entry points for the fuzz targets in `fuzz/`, beside those in `metrics`, `rpc` and `target`.
//! Each is defined in the folder that it tests. They exist only with `--cfg fuzzing`.

pub use crate::{
    collect::drain_rings,
    inject::{adopt, switch_sleds},
};

//! Doors for the fuzz targets in `fuzz/`, beside those in `metrics`, `rpc` and `target`. Each stands
//! in the folder that it leads into. Only there with `--cfg fuzzing`.

pub use crate::{
    collect::drain_rings,
    inject::{adopt, switch_sleds},
};

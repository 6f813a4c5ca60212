//! XRay instrumentation maps, the trace model, the `.xtrace` format, foreign formats, and analyses.

pub mod container;
pub mod model;

mod addr;

pub use addr::FileAddr;

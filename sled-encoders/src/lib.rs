//! sled-encoders

//! Container images outside an engine: references, layouts, archives, layers and registries.

#![forbid(unsafe_code)]

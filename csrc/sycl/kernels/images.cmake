# Every image: a source file, compiled for a kind of device.
#   dpas    GPUs whose matrix engine multiplies tiles of 8 x 16 (Xe-HPC, Xe2, Xe3)
#   lanes   any device with sub-groups of 16
aoext_sycl_image(int4_tile dpas -DAOEXT_DPAS)
aoext_sycl_image(int4_tile lanes)

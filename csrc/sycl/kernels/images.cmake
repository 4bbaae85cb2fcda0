# Every image: a source file, compiled for a kind of device and for types of its operands.
#   dpas      GPUs whose matrix engine multiplies tiles of 8 x 16 (Xe-HPC, Xe2, Xe3)
#   lanes     any device with sub-groups of 16
#   emulated  the kernels of dpas with lanes in place of the matrix engine, for tests (AOEXT_XPU_PRETEND=matrix)
# Each kernel of an image is a module of its own (cmake/sycl.cmake), so that a device compiles only what is called.
option(AOEXT_SYCL_EMULATED "Embed the images that emulate the matrix engine: for tests" ON)

set(emulated_images int4_tile_bf16 rowwise_tile_int8_bf16 rowwise_tile_int8_int8 rowwise_tile_e4m3_e4m3
    blocks_tile_lut4_bf16 blocks_tile_lut4_fp16 blocks_tile_int8_bf16 blocks_tile_e4m3_bf16 blocks_tile_e5m2_fp16
    blocks_tile_int8_int8 blocks_tile_e4m3_e4m3 planes_tile_bf16 planes_tile_int8 int4_scaled_tile_int8 int4_scaled_tile_e4m3)

macro(aoext_matrix_images source types)
  aoext_sycl_image(${source} dpas_${types} -DAOEXT_DPAS -DAOEXT_MATRIX ${ARGN})
  if(AOEXT_SYCL_EMULATED AND "${source}_${types}" IN_LIST emulated_images)
    aoext_sycl_image(${source} emulated_${types} -DAOEXT_MATRIX ${ARGN})
  endif()
endmacro()

macro(aoext_tile_images source types matrix)
  aoext_sycl_image(${source} lanes_${types} ${ARGN})
  if(${matrix})
    aoext_matrix_images(${source} ${types} ${ARGN})
  endif()
endmacro()

# The matrix engine does not multiply float32.
foreach(input IN ITEMS bf16 fp16)
  aoext_tile_images(int4_tile ${input} TRUE -DAOEXT_INPUT=Element::${input})
endforeach()
aoext_tile_images(int4_tile fp32 FALSE -DAOEXT_INPUT=Element::fp32)
foreach(weight IN ITEMS int8 e4m3 e5m2)
  foreach(input IN ITEMS bf16 fp16 fp32 ${weight})
    set(elements -DAOEXT_WEIGHT=Element::${weight} -DAOEXT_INPUT=Element::${input})
    string(COMPARE NOTEQUAL ${input} fp32 matrix)
    aoext_tile_images(rowwise_tile ${weight}_${input} ${matrix} ${elements})
    if(matrix)
      aoext_matrix_images(blocks_tile ${weight}_${input} ${elements})
    endif()
  endforeach()
endforeach()
foreach(input IN ITEMS bf16 fp16)
  aoext_matrix_images(blocks_tile lut4_${input} -DAOEXT_TABLE -DAOEXT_WEIGHT=Element::lut4 -DAOEXT_INPUT=Element::${input})
endforeach()
foreach(input IN ITEMS int8 e4m3)
  aoext_matrix_images(int4_scaled_tile ${input} -DAOEXT_INPUT=Element::${input})
endforeach()

# One type of operands serves several of x (planes_tile.cpp).
aoext_sycl_image(planes_tile lanes_fp32 -DAOEXT_PRODUCT=Element::fp32)
foreach(product IN ITEMS bf16 fp16 int8)
  aoext_matrix_images(planes_tile ${product} -DAOEXT_PRODUCT=Element::${product})
endforeach()

foreach(source IN ITEMS arrange_input dequantize_blocks dequantize_int4 int4_correction int4pack_mm linear_any quantize_rowwise
        scale_rows sort_by_expert)
  aoext_sycl_image(${source} lanes)
endforeach()
